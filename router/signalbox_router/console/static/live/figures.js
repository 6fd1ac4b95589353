/** Figures of a history: those of the charts, and what steps contain. No DOM. */

import { counted, duration, number } from "../lib/format.js";
import { requestsOf } from "./picture.js";

/** Returns the value that a share of all weights does not exceed; undefined of none. */
export function quantile(pairs, share) {
  const sorted = [...pairs].sort((one, other) => one[0] - other[0]);
  let left = share * sorted.reduce((sum, [, weight]) => sum + weight, 0);
  for (const [value, weight] of sorted) if ((left -= weight) <= 0) return value;
  return sorted.at(-1)?.[0];
}

/** Returns a row of figures for each slice; the last, and one of which not all is known, has no rates. */
export function seriesOf({ slices, sliceS }) {
  return slices.map((slice, i) => {
    if (slice.row) return slice.row;
    const row = { at: slice.index * sliceS, ...requestCounts(slice.pictures) };
    if (i === slices.length - 1) return row;
    return (slice.row = slice.isKnown ? { ...row, ...ratesOf(slice, sliceS) } : row);
  });
}

/** Returns how many requests wait, load, run and are swapped, of all schedulers. */
function requestCounts(pictures) {
  const counts = { waiting: 0, loading: 0, running: 0, swapped: 0 };
  for (const { numWaiting, workers } of pictures.values()) {
    counts.waiting += numWaiting;
    for (const worker of workers.values()) {
      for (const { state } of requestsOf(worker).values()) if (state in counts) counts[state]++;
    }
  }
  return counts;
}

function ratesOf({ steps, numOmitted }, sliceS) {
  const toldS = sliceS * (steps.length / (steps.length + numOmitted || 1) || 1);
  const firsts = steps.flatMap(({ firstTokensS }) => firstTokensS.map((one) => [one, 1]));
  const gaps = steps.filter((one) => one.numDecodes).map((one) => [one.seconds, one.numDecodes]);
  const numDecodes = sum(gaps.map(([, count]) => count));
  return {
    generated: (numDecodes + firsts.length) / toldS,
    prompt: (sum(steps.map((one) => one.numTokens)) - numDecodes) / toldS,
    ttft50: quantile(firsts, 0.5),
    ttft99: quantile(firsts, 0.99),
    gap50: quantile(gaps, 0.5),
    gap99: quantile(gaps, 0.99),
  };
}

/** Returns how many blocks steps have moved, by what they count. */
export function movesOf(steps) {
  const sums = {};
  for (const [name, count] of steps.flatMap(({ moved }) => Object.entries(moved))) {
    sums[name] = (sums[name] ?? 0) + count;
  }
  return sums;
}

/** Returns the steps of a worker that were answered in (from, to]. */
export function stepsBetween({ slices, sliceS }, worker, from, to) {
  return slices
    .filter(({ index }) => index >= Math.floor(from / sliceS))
    .flatMap(({ steps }) => steps)
    .filter((one) => one.at > from && one.at <= to && one.worker === worker);
}

/** Says what a step contained. */
export function wordsOf({ id, seconds, numDecodes, chunks, moved, firstTokensS }) {
  const parts = [`step ${number(id)}, ${duration(seconds)}`];
  if (numDecodes) parts.push(counted(numDecodes, "decode"));
  if (chunks.length) {
    const tokens = counted(sum(chunks), "token");
    parts.push(`${counted(chunks.length, "chunk")} of prompts with ${tokens}`);
  }
  if (firstTokensS.length) parts.push(counted(firstTokensS.length, "first token"));
  for (const [name, count] of Object.entries(moved)) {
    parts.push(`${name.replaceAll("_", " ")}: ${number(count)}`);
  }
  return parts.join(" · ");
}

export function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** Figures of the charts and of the last seconds, made of a history's sums. No DOM. */

import { duration, number } from "../lib/format.js";

/** Returns the value that a share of all weights does not exceed; null of none. */
export function quantile(pairs, share) {
  const sorted = [...pairs].sort((one, other) => one[0] - other[0]);
  let left = share * sorted.reduce((sum, [, weight]) => sum + weight, 0);
  for (const [value, weight] of sorted) if ((left -= weight) <= 0) return value;
  return sorted.at(-1)?.[0] ?? null;
}

/** Returns columns for the charts: `at`, and one of each figure; null where there is none. */
export function seriesOf(history, { from, to }) {
  const { bucketS, buckets } = history;
  const names = ["at", "generated", "prompt", "ttft50", "ttft99", "gap50", "gap99"];
  const states = ["running", "swapped", "loading", "waiting"];
  const columns = Object.fromEntries([...names, ...states].map((name) => [name, []]));
  let requests = null;
  const first = Math.floor(from / bucketS);
  const last = Math.floor(Math.min(to, Math.max(history.now, from)) / bucketS);
  for (let index = first; index <= last; index++) {
    const bucket = buckets.get(index);
    requests = bucket?.requests ?? requests;
    const isKnown = index < last && index * bucketS >= history.oldest; // the last has only begun
    const row = isKnown ? (bucket?.row ?? rowOf(bucket, bucketS)) : {};
    if (bucket && isKnown) bucket.row = row; // nothing is added any more
    columns.at.push(index * bucketS);
    for (const name of names.slice(1)) columns[name].push(row[name] ?? null);
    for (const name of states) columns[name].push(requests?.[name] ?? null);
  }
  return columns;
}

function rowOf(bucket, bucketS) {
  const { generated = 0, prompt = 0, firstTokensS = [], gaps = [] } = bucket ?? {};
  const told = bucket?.numOmitted ? bucket.numSteps / (bucket.numSteps + bucket.numOmitted) : 1;
  const firsts = firstTokensS.map((seconds) => [seconds, 1]);
  return {
    generated: generated / told / bucketS,
    prompt: prompt / told / bucketS,
    ttft50: quantile(firsts, 0.5),
    ttft99: quantile(firsts, 0.99),
    gap50: quantile(gaps, 0.5),
    gap99: quantile(gaps, 0.99),
  };
}

/** Where blocks come from and go to, by what steps count. */
export const MOVES = {
  blocks_swapped_out: ["device", "CPU"],
  blocks_swapped_in: ["CPU", "device"],
  blocks_copied: ["device", "device"],
  blocks_fetched: ["store or worker", "CPU"],
  blocks_stored: ["CPU", "store"],
  blocks_exported: ["CPU", "worker"],
};

/** Returns how many blocks steps have moved, by what they count. */
export function movesOf(steps) {
  const sums = {};
  for (const { moved } of steps) {
    for (const [name, count] of Object.entries(moved)) sums[name] = (sums[name] ?? 0) + count;
  }
  return sums;
}

/** Returns the steps of a worker that were answered in (from, to]. */
export function stepsBetween(steps, worker, from, to) {
  return steps.filter((one) => one.at > from && one.at <= to && one.worker === worker);
}

/** Says what a step contained. */
export function wordsOf(step) {
  const { id, seconds, numDecodes, chunks, moved, firstTokensS } = step;
  const prompt = chunks.reduce((sum, count) => sum + count, 0);
  const parts = [`step ${number(id)}, ${duration(seconds)}`];
  if (numDecodes) parts.push(counted(numDecodes, "decode"));
  if (chunks.length) {
    parts.push(`${counted(chunks.length, "chunk")} of prompts with ${counted(prompt, "token")}`);
  }
  if (firstTokensS.length) parts.push(counted(firstTokensS.length, "first token"));
  for (const [name, count] of Object.entries(moved)) {
    parts.push(`${name.replaceAll("_", " ")}: ${number(count)}`);
  }
  return parts.join(" · ");
}

export function counted(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

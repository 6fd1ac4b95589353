/** What happened to a request, in the words of `signalbox explain`. No DOM. */

import { bytes, duration } from "../lib/format.js";

const REASONS = {
  NEXT_STEP: "the next step",
  NO_WORKER: "a worker that takes it",
  TOKENS: "the token budget",
  SEQUENCES: "a place among the sequences",
  BLOCKS: "KV blocks",
  SWAPPED_FIRST: "swapped requests to go first",
  GRAMMAR: "its structured output to be compiled",
  SUSPECT: "a suspect to compute alone",
  LOADING: "its prefix to be fetched",
};

export const secondsOf = (nanoseconds = 0) => Number(nanoseconds) / 1e9;
export const kindOf = ({ kind }) => kind.replace("EVENT_KIND_", "");
export const nameOf = (event) => kindOf(event).replaceAll("_", " ").toLowerCase();
export const stateOf = ({ state }) => state.replace("REQUEST_STATE_", "").toLowerCase();

export function counted(count = 0, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

export function waitsOf(waits) {
  const each = ({ reason, durationNs }) =>
    `${REASONS[reason.replace("WAIT_REASON_", "")] ?? "?"} ${duration(secondsOf(durationNs))}`;
  return waits.map(each).join(", ");
}

/** Sentences of the whole. */
export function summaryOf(one) {
  const { numCachedTokens = 0, numSequences = 1, numPreemptions = 0, waits = [] } = one;
  const branches = numSequences > 1 ? ` in ${numSequences} sequences` : "";
  const times = { 0: "never", 1: "once", 2: "twice" }[numPreemptions] ?? `${numPreemptions} times`;
  const lines = [
    `Prompt ${counted(one.numPromptTokens, "token")} (${numCachedTokens.toLocaleString("en")} cached),` +
      ` output ${counted(one.numOutputTokens, "token")}${branches}, preempted ${times}.`,
    prefixOf(one),
  ];
  if (waits.length) lines.push(`It waits behind ${one.numAhead ?? 0}, for ${waitsOf(waits)}.`);
  for (const { meaning, gauge, counter } of one.samples ?? []) {
    lines.push(
      `${meaning.replace(/\.$/, "")}: ${Number(gauge ?? counter ?? 0).toLocaleString("en")}.`,
    );
  }
  if (one.numDroppedEvents) {
    lines.push(
      `${counted(one.numDroppedEvents, "event")} between the first and the last are not kept.`,
    );
  }
  return lines;
}

/** Says how much of the prompt was found, and why not more. */
export function prefixOf({ numPromptTokens = 0, numCachedTokens = 0, blockSize = 0, events = [] }) {
  if (!events.some((event) => kindOf(event) === "PREFILL")) return "";
  const whole = blockSize && Math.floor((numPromptTokens - 1) / blockSize) * blockSize;
  if (blockSize && numCachedTokens >= whole) {
    const rest = counted(numPromptTokens - numCachedTokens, "token");
    return numCachedTokens
      ? `Nothing broke its prefix: only the last ${rest}, which fill no block of ${blockSize} before the last token, were not cached.`
      : `Its prompt fills no block of ${blockSize} before the last token, so none could be cached.`;
  }
  const missing = blockSize
    ? `The block with tokens ${numCachedTokens + 1} to ${numCachedTokens + blockSize}`
    : `What follows token ${numCachedTokens}`;
  return `Its prefix broke after ${counted(numCachedTokens, "token")}. ${missing} was not in the cache: no request of its tenant had these tokens behind the same beginning, or they were evicted.`;
}

/** The details of an event. */
export function detailsOf(event) {
  const { numTokens, numBlocks, numSequences, worker, detail = "" } = event;
  const step = `step ${event.stepId ?? 0}`;
  const words = {
    QUEUED: () => (event.numAhead ? `behind ${event.numAhead}` : "first in the queue"),
    SCHEDULED: () => resumed(event, step),
    RESUMED: () => resumed(event, step),
    PREFILL: () => `${counted(numTokens, "token")}${cached(event)}, ${step}`,
    PREEMPTED: () =>
      `${counted(numBlocks, "block")} ${event.isSwap ? "swapped out" : "given up, to be recomputed"}, for ${event.otherRequestId}, ${step}`,
    FORKED: () => `${numSequences} sequences`,
    SEQUENCE_FINISHED: () => `sequence ${event.branch ?? 0}: ${detail.toLowerCase()}`,
    MOVED: () => `the worker ${worker} was ${detail}`,
    SUSPECTED: () => `it was in flight: computes alone for ${counted(numTokens, "token")}`,
    CLEARED: () => `it was not the cause: computes with others, ${step}`,
    FETCHED: () => transferred(event),
    STORED: () => transferred(event),
    MIGRATED: () => `to ${worker}, ${transferred(event)} without a token`,
    DEAR_MASKS: () => dear(event, step),
    ENDED: () => (detail === detail.toUpperCase() ? detail.toLowerCase() : detail),
  };
  return words[kindOf(event)]?.() ?? detail;
}

function cached({ numCachedTokens }) {
  return numCachedTokens ? ` behind ${numCachedTokens.toLocaleString("en")} cached ones` : "";
}

function resumed({ worker, isSwap, numBlocks, waits = [] }, step) {
  const swapped = isSwap ? `, ${counted(numBlocks, "block")} swapped in` : "";
  return `by ${worker}, ${step}${swapped}${waits.length ? `; waited for ${waitsOf(waits)}` : ""}`;
}

function transferred(event) {
  const { numBlocks, numBytes = 0, durationNs, store, source, detail } = event;
  const place = store ? `the ${store === "disk" ? "disk" : `${store} store`}` : source;
  const moved = `${counted(numBlocks, "block")}, ${bytes(Number(numBytes))} in ${duration(secondsOf(durationNs))}`;
  const way = kindOf(event) === "STORED" ? ` to ${place}` : ` from ${place}`;
  return moved + (place ? way : "") + (detail ? `: ${detail}` : "");
}

function dear({ durationNs }, step) {
  const cause = durationNs
    ? `the mask of a token takes ${duration(secondsOf(durationNs))}`
    : "the masks of its payer's requests take long";
  return `${cause}: sits steps out while others run, ${step}`;
}

/** Rows of the table: time, name, details; the chunks of a prefill are one row. */
export function rowsOf(events) {
  const rows = [];
  for (const event of events) {
    const last = rows.at(-1);
    if (kindOf(event) === "PREFILL" && last?.chunks) last.chunks.push(event);
    else rows.push({ event, chunks: kindOf(event) === "PREFILL" ? [event] : null });
  }
  return rows.map(({ event, chunks }) => [
    `${secondsOf(event.atNs).toFixed(3)} s`,
    nameOf(event),
    chunks?.length > 1 ? chunksOf(chunks) : detailsOf(event),
  ]);
}

function chunksOf(chunks) {
  const sum = chunks.reduce((total, { numTokens = 0 }) => total + numTokens, 0);
  const steps = `steps ${chunks[0].stepId} to ${chunks.at(-1).stepId}`;
  return `${counted(sum, "token")} in ${chunks.length} chunks${cached(chunks[0])}, ${steps}`;
}

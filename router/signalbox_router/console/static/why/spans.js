/** A request's time from its arrival on, as spans in lanes. No DOM. */

import { detailsOf, kindOf, nameOf, secondsOf } from "./words.js";

export const LANES = ["queue", "prefill", "decode", "preempted", "fetched", "stored", "moved"];
const STATES = LANES.slice(0, 4);
const TRANSFERS = { FETCHED: "fetched", STORED: "stored", MIGRATED: "moved" };
const NEXT_LANE = {
  QUEUED: "queue",
  SCHEDULED: "prefill",
  PREFILL: "prefill",
  FIRST_TOKEN: "decode",
  POOLED: "decode",
  PREEMPTED: "preempted",
  MOVED: "queue",
};
const MAX_TICKS = 6;

/**
 * Returns spans with lane, seconds from and to, and words; those of STATES follow each other.
 *
 * Of the last chunk that is computed again no end is known: it is a moment, and tokens follow it.
 */
export function spansOf({ events = [], ageNs }) {
  const spans = [];
  let open = null;
  const begin = (lane, at, words = "", isChunk = false) => {
    if (open && (at > open.from || open.isChunk)) spans.push({ ...open, to: at });
    open = lane && { lane, from: at, words, isChunk };
  };
  let hasToken = false;
  events.forEach((event, i) => {
    const [kind, at] = [kindOf(event), secondsOf(event.atNs)];
    const words = `${nameOf(event)}: ${detailsOf(event)}`.replace(/: $/, "");
    if (kind in TRANSFERS) {
      const from = Math.max(0, at - secondsOf(event.durationNs));
      spans.push({ lane: TRANSFERS[kind], from, to: at, words });
    }
    if (kind === "MOVED") spans.push({ lane: "moved", from: at, to: at, words });
    if (kind === "RESUMED") begin(hasToken && event.isSwap ? "decode" : "prefill", at, words);
    else if (kind === "QUEUED" && open?.lane === "preempted") return;
    else if (kind in NEXT_LANE) begin(NEXT_LANE[kind], at, words, kind === "PREFILL");
    hasToken ||= kind === "FIRST_TOKEN";
    if (kind === "PREFILL" && hasToken && !isFollowed(event, events[i + 1])) {
      begin("decode", at, words);
    }
  });
  begin(null, secondsOf(ageNs));
  return spans;
}

/** Says whether a chunk's next event is a chunk of the next step. */
function isFollowed({ stepId }, next) {
  return next && kindOf(next) === "PREFILL" && Number(next.stepId) === Number(stepId) + 1;
}

/** Times of the axis: round numbers of seconds. */
export function ticksOf(end) {
  const power = 10 ** Math.floor(Math.log10(end / MAX_TICKS || 1));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => end / one <= MAX_TICKS);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, i) => i * step);
}

/** Chrome's trace events: a thread for each lane, an instant for each event. Times are µs. */
export function traceOf(scheduler, explanation) {
  const name = (what, tid, text) => ({ ph: "M", name: what, pid: 1, tid, args: { name: text } });
  const events = [name("process_name", 0, `request ${explanation.requestId} at ${scheduler}`)];
  [...LANES, "events"].forEach((lane, i) => events.push(name("thread_name", i + 1, lane)));
  spansOf(explanation).forEach(({ lane, from, to, words }, id) => {
    const common = { cat: "request", name: lane, pid: 1, tid: LANES.indexOf(lane) + 1 };
    const [ts, dur] = [from * 1e6, (to - from) * 1e6];
    if (STATES.includes(lane)) events.push({ ph: "X", ...common, ts, dur, args: { words } });
    else {
      events.push({ ph: "b", ...common, id, ts, args: { words } });
      events.push({ ph: "e", ...common, id, ts: ts + dur });
    }
  });
  for (const { kind, ...args } of explanation.events ?? []) {
    const common = { ph: "i", s: "t", pid: 1, tid: LANES.length + 1 };
    events.push({ ...common, name: nameOf({ kind }), ts: secondsOf(args.atNs) * 1e6, args });
  }
  return { displayTimeUnit: "ms", traceEvents: events };
}

/** Where a request's time went, as a picture and as a file for Perfetto. */

import { duration, secondsOf } from "../lib/format.js";
import { html } from "../lib/html.js";

/** Colours of lanes, in their order. */
const COLORS = {
  queue: "--c2",
  prefill: "--c8",
  decode: "--c3",
  preempted: "--c4",
  fetched: "--c1",
  stored: "--c5",
  moved: "--c7",
};
/** Lanes whose spans follow each other; others may overlap. */
const STATES = Object.keys(COLORS).slice(0, 4);
const LEAST_SHARE = 0.003; // of the width, for what took no time
const MAX_TICKS = 6;

/** Returns spans by lane, with seconds from and to. */
function lanesOf({ spans = [] }) {
  const lanes = new Map(Object.keys(COLORS).map((lane) => [lane, []]));
  for (const { lane, beginsAtNs, endsAtNs, details } of spans) {
    const span = { from: secondsOf(beginsAtNs), to: secondsOf(endsAtNs), details };
    lanes.set(lane, [...(lanes.get(lane) ?? []), span]);
  }
  return [...lanes].filter(([, found]) => found.length);
}

/** Props: `text` of an explanation, `end` in seconds. */
export function Timeline({ text, end }) {
  const share = (seconds) => `${(100 * seconds) / end}%`;
  const ticks = ticksOf(end);
  return html`<figure class="panel why-picture" aria-label="Where its time went">
    ${lanesOf(text).map(([lane, spans]) => {
      const total = duration(spans.reduce((sum, { from, to }) => sum + to - from, 0));
      return html`<span>${lane}</span>
        <svg role="img" aria-label=${`${lane}: ${total}`}>
          ${ticks.map((at) => html`<line x1=${share(at)} x2=${share(at)} y1="0" y2="100%" />`)}
          ${spans.map(
            ({ from, to, details }) =>
              html`<rect
                fill=${`var(${COLORS[lane] ?? "--muted"})`}
                x=${share(from)}
                y="15%"
                width=${share(Math.max(to - from, end * LEAST_SHARE))}
                height="70%"
              >
                <title>${`${duration(to - from)} from ${duration(from)} on. ${details}`}</title>
              </rect>`,
          )}
        </svg>
        <span class="why-total">${total}</span>`;
    })}
    <svg class="why-axis" aria-hidden="true">
      ${ticks.map((at) => html`<text x=${share(at)} y="1em">${at ? duration(at) : 0}</text>`)}
    </svg>
  </figure>`;
}

/** Times of the axis: round numbers of seconds. */
export function ticksOf(end) {
  const power = 10 ** Math.floor(Math.log10(end / MAX_TICKS));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => end / one <= MAX_TICKS);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, i) => i * step);
}

/** Chrome's trace events: a thread for each lane, an instant for each line. Times are µs. */
export function traceOf(name, text) {
  const common = { pid: 1, tid: 0, cat: "request" };
  const named = (name, tid, said) => ({ ...common, ph: "M", name, tid, args: { name: said } });
  const traceEvents = [named("process_name", 0, name)];
  lanesOf(text).forEach(([lane, spans], i) => {
    traceEvents.push(named("thread_name", i + 1, lane));
    spans.forEach(({ from, to, details }, k) => {
      const span = { ...common, name: lane, tid: i + 1, ts: from * 1e6, args: { details } };
      if (STATES.includes(lane)) traceEvents.push({ ...span, ph: "X", dur: (to - from) * 1e6 });
      else {
        const id = `${lane} ${k}`;
        traceEvents.push({ ...span, ph: "b", id }, { ...span, ph: "e", id, ts: to * 1e6 });
      }
    });
  });
  for (const { atNs, event, details } of text.lines ?? []) {
    const ts = secondsOf(atNs) * 1e6;
    traceEvents.push({ ...common, ph: "i", s: "p", name: event, ts, args: { details } });
  }
  return { displayTimeUnit: "ms", traceEvents };
}

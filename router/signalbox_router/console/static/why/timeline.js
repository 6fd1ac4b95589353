/** A picture of where a request's time went. */

import { duration } from "../lib/format.js";
import { html } from "../lib/html.js";
import { LANES, spansOf, ticksOf } from "./spans.js";
import { secondsOf } from "./words.js";

const COLORS = {
  queue: "--c2",
  prefill: "--c8",
  decode: "--c3",
  preempted: "--c4",
  fetched: "--c1",
  stored: "--c5",
  moved: "--c7",
};
const LEAST_SHARE = 0.003; // of the width, for what took no time

/** Props: `explanation`. */
export function Timeline({ explanation }) {
  const spans = spansOf(explanation);
  const end = Math.max(secondsOf(explanation.ageNs), 1e-6);
  const share = (seconds) => `${(100 * seconds) / end}%`;
  const ticks = ticksOf(end);
  return html`<figure class="why-picture" aria-label="Where its time went">
    ${LANES.filter((lane) => spans.some((span) => span.lane === lane)).map((lane) => {
      const own = spans.filter((span) => span.lane === lane);
      const total = duration(own.reduce((sum, { from, to }) => sum + to - from, 0));
      return html`<span class="why-lane">${lane}</span>
        <svg class="why-bar" role="img" aria-label=${`${lane}: ${total}`}>
          ${ticks.map((at) => html`<line x1=${share(at)} x2=${share(at)} y1="0" y2="100%" />`)}
          ${own.map(
            ({ from, to, words }) =>
              html`<rect
                fill=${`var(${COLORS[lane]})`}
                x=${share(from)}
                y="15%"
                width=${share(Math.max(to - from, end * LEAST_SHARE))}
                height="70%"
              >
                <title>${`${duration(to - from)} from ${duration(from)} on. ${words}`}</title>
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

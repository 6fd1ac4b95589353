/** The steps of a worker on the time axis: a lane for each thing that they contain. */

import { duration, number } from "../lib/format.js";
import { html } from "../lib/html.js";
import { color } from "../lib/theme.js";
import { Canvas, FONT } from "./canvas.js";
import { sum, wordsOf } from "./figures.js";

/** What else steps come to contain has a row here. */
const LANES = [
  { name: "decodes", color: "--c1", of: (step) => step.numDecodes },
  { name: "prompt tokens", color: "--c2", of: (step) => step.numTokens - step.numDecodes },
  { name: "blocks moved", color: "--c5", of: (step) => sum(Object.values(step.moved)) },
  { name: "time", color: "--c8", of: (step) => step.seconds, format: duration },
];
const LANE = 34;
const LABEL = 13;

/** Props: `steps` of the worker in the window, `from` and `to` of it, `at`, `onMove(at)`. */
export function Timeline({ steps, from, to, at, onMove }) {
  const shown = LANES.filter((lane) => lane.name !== "blocks moved" || steps.some(lane.of));
  const current = steps.findLast((step) => step.at <= at);
  const move = ({ offsetX, currentTarget }) => {
    const time = from + (offsetX / currentTarget.offsetWidth) * (to - from);
    onMove((steps.find((step) => step.at >= time) ?? steps.at(-1))?.at ?? time);
  };
  const go = (event) => {
    const there = {
      ArrowLeft: () => steps.findLast((step) => step.at < (current?.at ?? at)),
      ArrowRight: () => steps.find((step) => step.at > at),
      Home: () => steps[0],
      End: () => steps.at(-1),
    }[event.key]?.();
    if (!there) return;
    event.preventDefault();
    onMove(there.at);
  };
  const said = current ? wordsOf(current) : "no step";
  return html`<${Canvas}
      class="live-link"
      heightOf=${() => shown.length * (LANE + LABEL)}
      tabindex="0"
      role="slider"
      aria-label="Step of the worker"
      aria-valuemin="0"
      aria-valuemax=${Math.max(0, steps.length - 1)}
      aria-valuenow=${Math.max(0, steps.indexOf(current))}
      aria-valuetext=${said}
      draw=${(context, width) => drawLanes(context, width, { steps, shown, from, to, at })}
      onPointerDown=${(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        move(event);
      }}
      onPointerMove=${(event) => event.buttons && move(event)}
      onKeyDown=${go}
    />
    <p class="live-readout">${said}</p>`;
}

function drawLanes(context, width, { steps, shown, from, to, at }) {
  const scale = width / (to - from);
  context.font = FONT;
  shown.forEach((lane, i) => {
    const base = (i + 1) * (LANE + LABEL) - 1;
    const bars = barsOf(steps, lane.of, from, scale, width);
    const top = Math.max(...bars);
    context.fillStyle = color(lane.color);
    bars.forEach((value, x) => {
      const height = Math.max(1, (value / top) * LANE);
      if (value) context.fillRect(x, base - height, 1, height);
    });
    context.fillStyle = color("--line");
    context.fillRect(0, base, width, 1);
    context.fillStyle = color("--muted");
    context.textAlign = "left";
    context.fillText(lane.name, 0, base - LANE - 3);
    context.textAlign = "right";
    const most = top ? `up to ${(lane.format ?? number)(top)}` : "none";
    context.fillText(most, width, base - LANE - 3);
  });
  context.fillStyle = color("--text");
  context.fillRect(Math.min(width - 1, (at - from) * scale), 0, 1, shown.length * (LANE + LABEL));
}

/** Returns the value of each pixel; of steps that share one the greatest. */
function barsOf(steps, of, from, scale, width) {
  const bars = new Float64Array(width);
  for (const step of steps) {
    const begin = Math.max(0, Math.floor((step.at - step.seconds - from) * scale));
    const wide = Math.floor((step.at - from) * scale) - begin;
    const end = begin + Math.max(1, wide - (wide > 4 ? 1 : 0));
    for (let x = begin; x < end; x++) bars[x] = Math.max(bars[x], of(step));
  }
  return bars;
}

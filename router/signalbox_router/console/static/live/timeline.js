/** The steps of a worker on the time axis: a lane for each thing that they contain. */

import { duration, number } from "../lib/format.js";
import { html } from "../lib/html.js";
import { color } from "../lib/theme.js";
import { Canvas, useWidth } from "./canvas.js";
import { MOVES, wordsOf } from "./figures.js";

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
  const [box, width] = useWidth();
  const shown = LANES.filter((lane) => lane.name !== "blocks moved" || steps.some(lane.of));
  const current = steps.findLast((step) => step.at <= at);
  const scale = width / (to - from);
  const move = (event) => {
    const time = from + event.offsetX / scale;
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
  return html`<div ref=${box} class="live-canvas">
      <${Canvas}
        class="live-timeline"
        width=${width}
        height=${shown.length * (LANE + LABEL)}
        tabindex="0"
        role="slider"
        aria-label="Step of the worker"
        aria-valuemin="0"
        aria-valuemax=${Math.max(0, steps.length - 1)}
        aria-valuenow=${Math.max(0, steps.indexOf(current))}
        aria-valuetext=${said}
        draw=${(context) => drawLanes(context, { steps, shown, from, scale, width, at })}
        onPointerDown=${(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          move(event);
        }}
        onPointerMove=${(event) => event.buttons && move(event)}
        onKeyDown=${go}
      />
    </div>
    <p class="live-readout">${said}</p>`;
}

function drawLanes(context, { steps, shown, from, scale, width, at }) {
  const text = color("--muted");
  context.font = '11px system-ui, "Liberation Sans", sans-serif';
  shown.forEach((lane, i) => {
    const base = (i + 1) * (LANE + LABEL) - 1;
    const top = Math.max(...steps.map(lane.of), 0);
    context.fillStyle = color(lane.color);
    for (const [x, wide, value] of columnsOf(steps, lane.of, from, scale)) {
      const height = top ? (value / top) * LANE : 0;
      if (value) context.fillRect(x, base - Math.max(1, height), wide, Math.max(1, height));
    }
    context.fillStyle = color("--line");
    context.fillRect(0, base, width, 1);
    context.fillStyle = text;
    context.textAlign = "left";
    context.fillText(lane.name, 0, base - LANE - 3);
    context.textAlign = "right";
    const most = top ? `up to ${(lane.format ?? number)(top)}` : "none";
    context.fillText(most, width, base - LANE - 3);
  });
  context.fillStyle = color("--text");
  context.fillRect(Math.min(width - 1, (at - from) * scale), 0, 1, shown.length * (LANE + LABEL));
}

/** Yields left edge, width and value of a bar; of steps that share a pixel the greatest. */
function* columnsOf(steps, of, from, scale) {
  let [left, right, most] = [-1, 0, 0];
  for (const step of steps) {
    const x = Math.floor((step.at - step.seconds - from) * scale);
    const end = Math.floor((step.at - from) * scale);
    if (end <= right && left >= 0) {
      most = Math.max(most, of(step));
      continue;
    }
    if (left >= 0) yield [left, Math.max(1, right - left - (right - left > 4 ? 1 : 0)), most];
    [left, right, most] = [Math.max(x, right, 0), end, of(step)];
  }
  if (left >= 0) yield [left, Math.max(1, right - left), most];
}

/** Blocks that moved between tiers, of steps. Props: `moves`, `seconds` that they took. */
export function Moves({ moves, seconds }) {
  const rows = Object.entries(moves);
  if (!rows.length) return html`<p class="live-muted">No block moves between tiers.</p>`;
  return html`<ul class="live-legend">
    ${rows.map(([name, count]) => {
      const [source, target] = MOVES[name] ?? [name.replaceAll("_", " "), ""];
      const rate = `${number(count / seconds)} blocks/s`;
      return html`<li>${source} ${target && html`→ ${target}`} <b>${rate}</b></li>`;
    })}
  </ul>`;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

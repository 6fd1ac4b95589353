/** Charts over the whole time axis, with what each shows at the moment that is looked at. */

import { duration, number } from "../lib/format.js";
import { html } from "../lib/html.js";
import { color } from "../lib/theme.js";
import { Canvas, FONT, Key } from "./canvas.js";
import { seriesOf } from "./figures.js";

const HEIGHT = 90;
const LABEL = 14;
const TONES = ["--c1", "--c2", "--c5", "--c4"];
const rate = (value) => `${number(value)}/s`;
/** Title, form, and the figures with their names. A chart for what is new has a row here. */
const CHARTS = [
  ["Tokens", rate, { generated: "generated", prompt: "of prompts" }],
  ["Time to first token", duration, { ttft50: "median", ttft99: "p99" }],
  ["Time between tokens", duration, { gap50: "median", gap99: "p99" }],
  [
    "Requests",
    number,
    { running: "running", swapped: "swapped", loading: "loading", waiting: "waiting" },
  ],
];

/** Props: `history`, `axis`, `at`, and `time` as text. */
export function Charts({ history, axis, at, time }) {
  const rows = seriesOf(history).filter((row) => row.at >= axis.from);
  return html`<div class="live-charts">
    ${CHARTS.map(([title, format, names]) => {
      const past = rows.filter((row) => row.at <= at);
      const valueOf = (name) => past.findLast((row) => row[name] !== undefined)?.[name];
      return html`<section class="panel live-chart">
        <h3>${title}</h3>
        <dl class="live-row">
          ${Object.entries(names).map(
            ([name, said], i) =>
              html`<div>
                <dt><${Key} color=${TONES[i]} />${said}</dt>
                <dd>${textOf(valueOf(name), format)}</dd>
              </div>`,
          )}
        </dl>
        <${Canvas}
          aria-hidden="true"
          heightOf=${() => HEIGHT + LABEL}
          draw=${(context, width) => drawChart(context, width, { rows, axis, at, time, format, names })}
        />
      </section>`;
    })}
  </div>`;
}

function textOf(value, format) {
  if (value === undefined) return "none";
  return value ? format(value) : "0"; // of whatever unit
}

function drawChart(context, width, { rows, axis, at, time, format, names }) {
  const figures = Object.keys(names);
  const top = Math.max(...rows.flatMap((row) => figures.map((name) => row[name] ?? 0)), 0);
  const xOf = (seconds) => ((seconds - axis.from) / (axis.to - axis.from)) * width;
  const yOf = (value) => HEIGHT - 1 - (value / (top || 1)) * (HEIGHT - LABEL);
  figures.forEach((name, i) => {
    context.beginPath();
    context.strokeStyle = context.fillStyle = color(TONES[i]);
    rows.forEach((row, k) => {
      if (row[name] === undefined) return;
      const [x, y] = [xOf(row.at), yOf(row[name])];
      if (rows[k - 1]?.[name] === undefined) context.moveTo(x, y);
      else context.lineTo(x, y);
      context.fillRect(x - 1, y - 1, 2, 2);
    });
    context.stroke();
  });
  context.fillStyle = color("--line");
  context.fillRect(0, HEIGHT, width, 1);
  context.fillRect(0, LABEL, width, 1);
  context.fillStyle = color("--text");
  context.fillRect(Math.min(width - 1, xOf(at)), LABEL, 1, HEIGHT - LABEL);
  context.font = FONT;
  context.fillStyle = color("--muted");
  context.fillText(top ? `up to ${format(top)}` : "", 0, LABEL - 3);
  context.fillText(time(axis.from), 0, HEIGHT + LABEL - 2);
  context.textAlign = "right";
  context.fillText(time(axis.to), width, HEIGHT + LABEL - 2);
}

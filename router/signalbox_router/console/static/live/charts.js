/** Charts over the whole time axis, with what each shows at the time that is looked at. */

import { clock, duration, number } from "../lib/format.js";
import { html, useEffect, useLayoutEffect, useRef } from "../lib/html.js";
import { THEME_CHANGED, color } from "../lib/theme.js";
import uPlot from "../vendor/uplot.esm.js";
import { Key, useWidth } from "./canvas.js";
import { seriesOf } from "./figures.js";

const HEIGHT = 96;
const TONES = ["--c1", "--c2", "--c5", "--c4"];
const rate = (value) => `${number(value)}/s`;
/** Title, form and lines of each: columns, with their names. A chart for what is new has a row here. */
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

/** Props: `history`, `axis`, `at`, `isPaused`. */
export function Charts({ history, axis, at, isPaused }) {
  const series = seriesOf(history, axis);
  const index = Math.max(
    0,
    series.at.findLastIndex((one) => one <= at),
  );
  return html`<div class="live-charts">
    ${CHARTS.map(
      ([title, format, names]) =>
        html`<${Chart}
          ...${{ title, format, names, series, index, axis }}
          at=${isPaused ? at : null}
          isRecording=${Boolean(history.recording)}
        />`,
    )}
  </div>`;
}

function Chart({ title, format, names, series, index, axis, at, isRecording }) {
  const columns = Object.keys(names);
  const [box, width] = useWidth();
  const plot = useRef(null);
  const cursor = useRef(at);
  const make = () => {
    plot.current?.destroy();
    const options = optionsOf(columns.length, format, isRecording, cursor);
    plot.current = new uPlot({ ...options, width, height: HEIGHT }, null, box.current);
  };
  useEffect(() => {
    document.addEventListener(THEME_CHANGED, make);
    return () => document.removeEventListener(THEME_CHANGED, make);
  }, [width, isRecording]);
  useLayoutEffect(() => {
    if (width) make();
    return () => (plot.current = plot.current?.destroy() ?? null);
  }, [width, isRecording]);
  useLayoutEffect(() => {
    cursor.current = at;
    if (!plot.current) return;
    plot.current.setData([series.at, ...columns.map((column) => series[column])], false);
    plot.current.setScale("x", { min: axis.from, max: axis.to });
  });
  const latest = (column) => series[column].slice(0, index + 1).findLast((one) => one !== null);
  return html`<section class="live-chart">
    <h3>${title}</h3>
    <dl>
      ${columns.map(
        (column, i) =>
          html`<div>
            <dt><${Key} color=${TONES[i]} />${names[column]}</dt>
            <dd>${textOf(latest(column), format)}</dd>
          </div>`,
      )}
    </dl>
    <div ref=${box} class="live-plot" aria-hidden="true"></div>
  </section>`;
}

function textOf(value, format) {
  if (value === undefined) return "none";
  return value ? format(value) : "0"; // of whatever unit
}

function optionsOf(numLines, format, isRecording, cursor) {
  const axis = {
    stroke: color("--muted"),
    font: '11px system-ui, "Liberation Sans", sans-serif',
    grid: { stroke: color("--line"), width: 1 },
    ticks: { show: false },
  };
  const times = (_, values) =>
    values.map((value) => (isRecording ? textOf(value, duration) : clock(value * 1000)));
  return {
    cursor: { show: false },
    legend: { show: false },
    padding: [6, 4, 0, 0],
    scales: { x: { time: false }, y: { range: (_, min, max) => [0, max > 0 ? max * 1.1 : 1] } },
    axes: [
      { ...axis, size: 20, gap: 4, space: 90, values: times },
      {
        ...axis,
        size: 54,
        gap: 4,
        space: 28,
        values: (_, values) => values.map((value) => textOf(value, format)),
      },
    ],
    series: [{}, ...TONES.slice(0, numLines).map((tone) => lineOf(color(tone)))],
    hooks: { draw: [(plot) => drawCursor(plot, cursor.current)] },
  };
}

function lineOf(stroke) {
  return { stroke, width: 1.5, points: { show: true, size: 3 } };
}

function drawCursor(plot, at) {
  if (at === null) return;
  const { ctx, bbox } = plot;
  ctx.fillStyle = color("--text");
  const x = plot.valToPos(at, "x", true);
  ctx.fillRect(x, bbox.top, devicePixelRatio, bbox.height);
}

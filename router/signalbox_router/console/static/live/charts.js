/** Charts over the whole time axis, with what each shows at the moment that is looked at. */

import { clock, duration, number } from "../lib/format.js";
import { html, useEffect, useLayoutEffect, useRef } from "../lib/html.js";
import { color } from "../lib/theme.js";
import uPlot from "../vendor/uplot.esm.js";
import { Key, useWidth } from "./canvas.js";
import { seriesOf } from "./figures.js";

const HEIGHT = 96;
const TONES = ["--c1", "--c2", "--c5", "--c4"];
const rate = (value) => `${number(value)}/s`;
const states = ["running", "swapped", "loading", "waiting"];
/** Title, form, and the columns with their names. A chart for what is new has a row here. */
const CHARTS = [
  ["Tokens", rate, { generated: "generated", prompt: "of prompts" }],
  ["Time to first token", duration, { ttft50: "median", ttft99: "p99" }],
  ["Time between tokens", duration, { gap50: "median", gap99: "p99" }],
  ["Requests", number, Object.fromEntries(states.map((one) => [one, one]))],
];

/** Props: `history`, `axis`, `at`, `isPaused`. */
export function Charts({ history, axis, at, isPaused }) {
  const series = seriesOf(history, axis);
  const index = Math.max(
    0,
    series.at.findLastIndex((one) => one <= at),
  );
  const time = history.recording ? duration : (seconds) => clock(seconds * 1000);
  const mark = isPaused ? at : null;
  return html`<div class="live-charts">
    ${CHARTS.map(
      ([title, format, names]) =>
        html`<${Chart} ...${{ title, format, names, series, index, axis, mark, time }} />`,
    )}
  </div>`;
}

function Chart({ title, format, names, series, index, axis, mark, time }) {
  const [box, width] = useWidth();
  const plot = useRef(null);
  const shown = useRef({});
  shown.current = { mark, time };
  const columns = Object.keys(names);
  useLayoutEffect(() => {
    if (!width) return;
    plot.current ??= new uPlot(optionsOf(columns.length, format, shown), null, box.current);
    if (plot.current.width !== width) plot.current.setSize({ width, height: HEIGHT });
    plot.current.setData([series.at, ...columns.map((column) => series[column])], false);
    plot.current.setScale("x", { min: axis.from, max: axis.to });
  }, [width, Math.floor(axis.to * 2), index, mark]);
  useEffect(() => () => plot.current?.destroy(), []);
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

function optionsOf(numLines, format, shown) {
  const axis = {
    stroke: () => color("--muted"),
    font: '11px system-ui, "Liberation Sans", sans-serif',
    grid: { stroke: () => color("--line"), width: 1 },
    ticks: { show: false },
    gap: 4,
  };
  const times = (_, values) => values.map((value) => textOf(value, shown.current.time));
  const texts = (_, values) => values.map((value) => textOf(value, format));
  const points = { show: true, size: 3 };
  const lineOf = (tone) => ({ stroke: () => color(tone), width: 1.5, points });
  return {
    width: 0,
    height: HEIGHT,
    cursor: { show: false },
    legend: { show: false },
    padding: [6, 4, 0, 0],
    scales: { x: { time: false }, y: { range: (_, min, max) => [0, max > 0 ? max * 1.1 : 1] } },
    axes: [
      { ...axis, size: 20, space: 90, values: times },
      { ...axis, size: 54, space: 28, values: texts },
    ],
    series: [{}, ...TONES.slice(0, numLines).map(lineOf)],
    hooks: { draw: [(plot) => drawMark(plot, shown.current.mark)] },
  };
}

function drawMark({ ctx, bbox, valToPos }, mark) {
  if (mark === null) return;
  ctx.fillStyle = color("--text");
  ctx.fillRect(valToPos(mark, "x", true), bbox.top, devicePixelRatio, bbox.height);
}

/** Charts over the whole time axis, with what each shows at the time that is looked at. */

import { clock, duration, number } from "../lib/format.js";
import { html, useEffect, useLayoutEffect, useRef } from "../lib/html.js";
import { THEME_CHANGED, color } from "../lib/theme.js";
import uPlot from "../vendor/uplot.esm.js";
import { useWidth } from "./canvas.js";
import { seriesOf } from "./figures.js";

const HEIGHT = 96;
const rate = (value) => `${number(value)}/s`;
const count = (value) => number(value);
/** Each line: its column, name and colour. A chart for what is new has a row here. */
const CHARTS = [
  {
    title: "Tokens",
    format: rate,
    lines: [
      ["generated", "generated", "--c1"],
      ["prompt", "of prompts", "--c2"],
    ],
  },
  {
    title: "Time to first token",
    format: duration,
    lines: [
      ["ttft50", "median", "--c1"],
      ["ttft99", "p99", "--c2"],
    ],
  },
  {
    title: "Time between tokens",
    format: duration,
    lines: [
      ["gap50", "median", "--c1"],
      ["gap99", "p99", "--c2"],
    ],
  },
  {
    title: "Requests",
    format: count,
    lines: [
      ["running", "running", "--c1"],
      ["swapped", "swapped", "--c2"],
      ["loading", "loading", "--c5"],
      ["waiting", "waiting", "--c4"],
    ],
  },
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
      (chart) =>
        html`<${Chart}
          ...${chart}
          series=${series}
          index=${index}
          axis=${axis}
          at=${isPaused ? at : null}
          isRecording=${Boolean(history.recording)}
        />`,
    )}
  </div>`;
}

function Chart({ title, format, lines, series, index, axis, at, isRecording }) {
  const [box, width] = useWidth();
  const plot = useRef(null);
  const cursor = useRef(at);
  const make = () => {
    plot.current?.destroy();
    const options = optionsOf(lines, format, isRecording, cursor);
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
    plot.current.setData([series.at, ...lines.map(([column]) => series[column])], false);
    plot.current.setScale("x", { min: axis.from, max: axis.to });
  });
  const shown = lines.map(([column, name, tone]) => {
    const value = series[column].slice(0, index + 1).findLast((one) => one !== null);
    return { name, tone, text: value === undefined ? "none" : format(value) };
  });
  return html`<section class="live-chart">
    <h3>${title}</h3>
    <dl>
      ${shown.map(
        ({ name, tone, text }) =>
          html`<div>
            <dt><i class="live-key live-tone${tone}"></i>${name}</dt>
            <dd>${text}</dd>
          </div>`,
      )}
    </dl>
    <div ref=${box} class="live-plot" aria-hidden="true"></div>
  </section>`;
}

function optionsOf(lines, format, isRecording, cursor) {
  const axis = {
    stroke: color("--muted"),
    font: '11px system-ui, "Liberation Sans", sans-serif',
    grid: { stroke: color("--line"), width: 1 },
    ticks: { show: false },
  };
  const times = (_, values) =>
    values.map((value) => (isRecording ? duration(value) : clock(value * 1000)));
  return {
    cursor: { show: false },
    legend: { show: false },
    padding: [6, 4, 0, 0],
    scales: { x: { time: false }, y: { range: (_, min, max) => [0, max > 0 ? max * 1.1 : 1] } },
    axes: [
      { ...axis, size: 20, gap: 4, space: 90, values: times },
      { ...axis, size: 54, gap: 4, space: 28, values: (_, values) => values.map(format) },
    ],
    series: [{}, ...lines.map(([, , tone]) => lineOf(color(tone)))],
    hooks: { draw: [(plot) => drawCursor(plot, cursor.current)] },
  };
}

function lineOf(stroke) {
  return { stroke, width: 1.5, spanGaps: true, points: { size: 3 } };
}

function drawCursor(plot, at) {
  if (at === null) return;
  const { ctx, bbox } = plot;
  ctx.fillStyle = color("--text");
  const x = plot.valToPos(at, "x", true);
  ctx.fillRect(x, bbox.top, devicePixelRatio, bbox.height);
}

/** How schedulers and workers are, in words. */

import { clock, duration } from "../lib/format.js";
import { html } from "../lib/html.js";
import { counted } from "./figures.js";

const NUM_EVENTS = 4;

/** Props: `history`, `pictures`, `at`, `problem` of the stream, `onKey`, `onRetry`. */
export function Status({ history, pictures, problem, at, onKey, onRetry }) {
  const { recording } = history;
  const lines = [...pictures].sort().map(([name, picture]) => lineOf(name, picture, recording));
  if (!lines.length && !problem) lines.push("Waiting for the first picture of a scheduler.");
  const events = history.events.filter((one) => one.at <= at).slice(-NUM_EVENTS);
  const time = (one) => (recording ? duration(one.at) : clock(one.at * 1000));
  return html`<div class="live-status">
    <div role="status">
      ${lines.map((text) => html`<p>${text}</p>`)}
      ${
        problem &&
        html`<p class="live-bad">
          ${problem} <button onClick=${onRetry}>Try again</button>
          <button onClick=${onKey}>Enter a key</button>
        </p>`
      }
    </div>
    <ol class="live-muted" aria-label="What has changed" hidden=${!events.length}>
      ${events.map((one) => html`<li><time>${time(one)}</time> ${one.text}</li>`)}
    </ol>
  </div>`;
}

function lineOf(name, { lost, workers, starting, numWaiting }, recording) {
  if (lost) {
    const text = recording
      ? `The recording breaks off: ${lost}`
      : `Scheduler ${name} is lost: ${lost}. The router tries again each second.`;
    return html`<span class="live-bad">${text}</span>`;
  }
  const draining = [...workers.values()].filter((one) => one.description.isDraining).length;
  const parts = [workers.size ? counted(workers.size, "worker") : "no worker has joined"];
  if (draining) parts.push(`${draining} draining`);
  for (const phase of starting) parts.push(`one that starts is ${phase}`);
  parts.push(numWaiting ? `${counted(numWaiting, "request")} waiting` : "no request waiting");
  return `${recording ? "Recording" : "Scheduler"} ${name}: ${parts.join(", ")}.`;
}

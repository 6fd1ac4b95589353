/** How schedulers and workers are, in words. */

import { counted } from "../lib/format.js";
import { html } from "../lib/html.js";

const NUM_EVENTS = 4;

/** Props: `history`, `at`, `time` as text, `problem` of the stream, `onKey`, `onRetry`. */
export function Status({ history, at, time, problem, onKey, onRetry }) {
  const lines = [...history.picturesAt(at)].sort().map(([name, picture]) => lineOf(name, picture));
  if (!lines.length && !problem) lines.push("Waiting for the first picture of a scheduler.");
  const events = history.slices.flatMap((slice) => slice.events).filter((one) => one.at <= at);
  return html`<div class="live-row live-status">
    <div role="status">
      ${lines.map((text) => html`<p>${text}</p>`)}
      ${
        problem &&
        html`<p class="bad">
          ${problem} <button onClick=${onRetry}>Try again</button>
          <button onClick=${onKey}>Enter a key</button>
        </p>`
      }
    </div>
    <ol class="muted" aria-label="What has changed" hidden=${!events.length}>
      ${events
        .slice(-NUM_EVENTS)
        .map((one) => html`<li><time>${time(one.at)}</time> ${one.scheduler}: ${one.text}</li>`)}
    </ol>
  </div>`;
}

function lineOf(name, { lost, workers, starting, numWaiting, numWrong }) {
  if (lost) return html`<span class="bad">${name} is lost: ${lost}</span>`;
  const draining = [...workers.values()].filter((one) => one.description.isDraining).length;
  const parts = [workers.size ? counted(workers.size, "worker") : "no worker has joined"];
  if (draining) parts.push(`${draining} draining`);
  for (const phase of starting) parts.push(`one that starts is ${phase}`);
  parts.push(numWaiting ? `${counted(numWaiting, "request")} waiting` : "no request waiting");
  if (numWrong) parts.push(`${counted(numWrong, "answer")} found wrong by audits`);
  return `Scheduler ${name}: ${parts.join(", ")}.`;
}

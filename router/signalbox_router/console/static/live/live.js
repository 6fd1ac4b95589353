/** The Live view: what the schedulers decide, now or at a moment of the last minute. */

import { clock, duration } from "../lib/format.js";
import { useCounter } from "../lib/hooks.js";
import { html, useEffect, useState } from "../lib/html.js";
import { askForKey } from "../lib/key.js";
import { Charts } from "./charts.js";
import { requestsOf } from "./picture.js";
import { Requests } from "./requests.js";
import { Sessions } from "./sessions.js";
import { Status } from "./status.js";
import { Watch } from "./watch.js";
import { WorkerPanel } from "./worker_panel.js";

const DRAW_MS = 400;
/** Seconds of steps that are shown. */
const WINDOW_S = 10;

export function Live() {
  const [pause, setPause] = useState(null); // what was known then, and the moment that is shown
  const watch = useWatch(pause !== null);
  const history = pause?.history ?? watch.history;
  const axis = pause?.axis ?? history.axisAt(Date.now() / 1000);
  const newest = history.recording ? history.now : axis.to;
  const at = pause?.at ?? newest;
  const pauseAt = (time) => {
    const moment = Math.min(Math.max(time, axis.from, history.oldest), newest);
    setPause({ history: pause ? history : history.frozen(), axis, at: moment });
  };
  // The window slides with the time; in a pause it goes by whole windows, so that a step stays in place.
  const to = pause ? newest - Math.floor((newest - at) / WINDOW_S) * WINDOW_S : at;
  const span = { from: to - WINDOW_S, to };
  const panels = [...history.picturesAt(at)].sort().flatMap(([scheduler, { workers, at: now }]) =>
    [...workers.values()].map((worker) => {
      return { scheduler, worker, now, requests: requestsOf(worker) };
    }),
  );
  const time = history.recording ? duration : (seconds) => clock(seconds * 1000);
  return html`<div class="live">
    <${TimeBar}
      ...${{ axis, at, newest, time, pauseAt, isPaused: pause !== null }}
      goOn=${() => setPause(null)}
    />
    <${Status}
      ...${{ history, at, time, problem: watch.problem }}
      onKey=${async () => (await askForKey("")) && watch.restart()}
      onRetry=${() => watch.restart()}
    />
    <${Charts} ...${{ history, axis, at, time }} />
    ${panels.map(
      (panel) =>
        html`<${WorkerPanel}
          key=${`${panel.scheduler} ${panel.worker.number}`}
          ...${{ ...panel, history, span, at, onMove: pauseAt }}
          onWhy=${(number) => (location.hash = whyHash(panel.scheduler, number))}
        />`,
    )}
    ${panels.length > 0 && html`<${Requests} ...${{ panels, whyHash }} /><${Sessions} />`}
  </div>`;
}

/** The address of a request's history. */
function whyHash(scheduler, number) {
  return `#/why/${number}@${encodeURIComponent(scheduler)}`;
}

/** Returns the watch of this view, which is drawn with its news, and each second; never in a pause. */
function useWatch(isPaused) {
  const [watch] = useState(() => new Watch());
  const [, draw] = useCounter();
  useEffect(() => {
    watch.start();
    return () => watch.end();
  }, []);
  useEffect(() => {
    if (isPaused) return undefined;
    let drawnAt = 0;
    const timer = setInterval(() => {
      if (document.hidden || !(watch.hasNews || Date.now() - drawnAt > 1000)) return;
      drawnAt = Date.now();
      watch.hasNews = false;
      draw();
    }, DRAW_MS);
    return () => clearInterval(timer);
  }, [isPaused]);
  return watch;
}

function TimeBar({ axis, at, newest, time, pauseAt, isPaused, goOn }) {
  const said = isPaused ? `${time(at)}, paused` : time(at);
  return html`<div class="live-row live-bar" role="group" aria-label="Time">
    <button onClick=${() => (isPaused ? goOn() : pauseAt(newest))} aria-pressed=${isPaused}>
      ${isPaused ? "Go on" : "Pause"}
    </button>
    <input
      type="range"
      aria-label="Moment that is shown"
      aria-valuetext=${said}
      min=${axis.from}
      max=${axis.to}
      step="0.1"
      value=${at}
      onInput=${({ target }) => pauseAt(Number(target.value))}
    />
    <span class="live-time">${said}</span>
  </div>`;
}

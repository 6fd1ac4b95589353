/** The Live view: what the schedulers decide, now or at a moment of the last minute. */

import { clock, duration } from "../lib/format.js";
import { html, useEffect, useReducer, useRef, useState } from "../lib/html.js";
import { askForKey } from "../lib/key.js";
import { Charts } from "./charts.js";
import { requestsOf } from "./picture.js";
import { Requests } from "./requests.js";
import { Status } from "./status.js";
import { Watch } from "./watch.js";
import { WorkerPanel } from "./worker_panel.js";

const FRAME_MS = 100;
const IDLE_MS = 1000;
const WINDOWS_S = [2, 10, 60];

export function Live() {
  const [view, setView] = useState({ pausedAt: null, axis: null, windowS: 10 });
  const isPaused = view.pausedAt !== null;
  const watch = useWatch(isPaused);
  const { history, problem } = watch;
  const axis = view.axis ?? history.axisAt(Date.now() / 1000);
  const newest = history.recording ? history.now : axis.to;
  const at = isPaused ? Math.max(view.pausedAt, history.oldest) : newest;
  const pauseAt = (time) => {
    const moment = Math.min(Math.max(time, axis.from), newest);
    setView((old) => ({ ...old, pausedAt: moment, axis, windowTo: windowEnd(old, moment, at) }));
  };
  const goOn = () => setView(({ windowS }) => ({ pausedAt: null, axis: null, windowS }));
  history.heldFrom = isPaused ? axis.from : Infinity;

  const pictures = history.picturesAt(at);
  const names = [...pictures.keys()].sort();
  const to = isPaused ? view.windowTo : at;
  const span = { from: to - view.windowS, to };
  const panels = names.flatMap((scheduler) => {
    const { workers, at: atNs } = pictures.get(scheduler);
    return [...workers.values()].map((worker) => {
      return { scheduler, worker, now: atNs / 1e9, requests: requestsOf(worker) };
    });
  });
  return html`<div class="live" aria-label="Live">
    <${TimeBar}
      ...${{ history, axis, at, isPaused, newest, pauseAt, goOn }}
      windowS=${view.windowS}
      onWindow=${(windowS) => setView((old) => ({ ...old, windowS, windowTo: at }))}
    />
    <${Status}
      ...${{ history, pictures, problem, at }}
      onKey=${async () => (await askForKey("")) && watch.restart()}
      onRetry=${() => watch.restart()}
    />
    ${names.length > 0 && html`<${Charts} ...${{ history, axis, at, isPaused }} />`}
    ${panels.map(
      (panel) =>
        html`<${WorkerPanel}
          key=${`${panel.scheduler} ${panel.worker.number}`}
          ...${{ ...panel, history, span, at, isOneOfMany: names.length > 1, onMove: pauseAt }}
          onWhy=${(number) => (location.hash = whyHash(panel.scheduler, number))}
        />`,
    )}
    ${panels.length > 0 && html`<${Requests} ...${{ panels, whyHash }} />`}
  </div>`;
}

/** The address of a request's history. */
function whyHash(scheduler, number) {
  return `#/why/${number}@${encodeURIComponent(scheduler)}`;
}

/** Moves the window of the steps only as far as the moment needs it. */
function windowEnd({ windowTo, windowS }, moment, at) {
  const to = windowTo ?? at;
  if (moment > to) return moment;
  return moment < to - windowS ? moment + windowS / 2 : to;
}

/** Returns the watch of this view, which is drawn with its news, and each second. */
function useWatch(isPaused) {
  const [, render] = useReducer((count) => count + 1, 0);
  const mine = useRef(null);
  mine.current ??= { hasNews: false, watch: new Watch(() => (mine.current.hasNews = true)) };
  mine.current.isPaused = isPaused;
  useEffect(() => {
    let [last, timer] = [0, 0];
    const draw = (time) => {
      timer = requestAnimationFrame(draw); // none comes while the tab is hidden
      const isNew = mine.current.hasNews && !mine.current.isPaused;
      if (time - last < (isNew ? FRAME_MS : IDLE_MS)) return;
      last = time;
      mine.current.hasNews = false;
      render();
    };
    mine.current.watch.start();
    timer = requestAnimationFrame(draw);
    return () => {
      cancelAnimationFrame(timer);
      mine.current.watch.stop();
    };
  }, []);
  return mine.current.watch;
}

function TimeBar({ history, axis, at, isPaused, newest, pauseAt, goOn, windowS, onWindow }) {
  const time = history.recording ? `${duration(at)} of ${duration(axis.to)}` : clock(at * 1000);
  const said = isPaused ? `${time}, paused` : time;
  return html`<div class="live-bar" role="group" aria-label="Time">
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
    <label>
      Steps of
      <select onChange=${({ target }) => onWindow(Number(target.value))}>
        ${WINDOWS_S.map(
          (one) => html`<option value=${one} selected=${one === windowS}>${duration(one)}</option>`,
        )}
      </select>
    </label>
  </div>`;
}

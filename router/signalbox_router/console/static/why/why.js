/** The Why view: what happened to one request, and where its time went, in the server's words. */

import { saveJson, secondsOf } from "../lib/format.js";
import { useCounter } from "../lib/hooks.js";
import { html, useEffect, useState } from "../lib/html.js";
import { askForKey } from "../lib/key.js";
import { OPERATIONS, call, retrying } from "../lib/rpc.js";
import { Timeline, traceOf } from "./timeline.js";

const REFRESH_MS = 1000;
const OF_SCHEDULER = /^(\d+)@(.+)$/;
const NEEDS_OPERATOR =
  "What happened to a request is shown to operators alone: it needs an API key with operator: true.";
const PROBLEMS = {
  not_found: "No scheduler knows this request: it is not running, nor among the last that ended.",
  unavailable: "A scheduler or the router does not answer. This page asks again.",
  permission_denied: NEEDS_OPERATOR,
  unauthenticated: NEEDS_OPERATOR,
};

/** Props: `id` of a request, or NUMBER@SCHEDULER as frames of Watch name it, or empty. */
export function Why({ id }) {
  const find = (event) => {
    event.preventDefault();
    const asked = new FormData(event.target).get("request").trim();
    location.hash = `#/why/${encodeURIComponent(asked)}`;
  };
  return html`<div class="why">
    <form class="why-find row" role="search" onSubmit=${find}>
      <label for="why-request">Request</label>
      <input
        id="why-request"
        name="request"
        key=${id}
        defaultValue=${id}
        placeholder="id, or its first characters"
        autocomplete="off"
        spellcheck=${false}
        required
      />
      <button>Explain</button>
    </form>
    ${
      id
        ? html`<${Explanation} key=${id} id=${id} />`
        : html`<p class="muted">
            Each answer has its request's id. <a href="#/live">Live</a> lists the requests that run.
          </p>`
    }
  </div>`;
}

function Explanation({ id }) {
  const { answer, error, again } = useExplanation(id);
  return html`<div aria-busy=${!answer && !error}>
    ${error && html`<${Problem} ...${{ error, again }} />`}
    ${answer && html`<${Explained} ...${answer} />`}
  </div>`;
}

/** Asks for what happened, and each second again while the request lives and the page is seen. */
function useExplanation(id) {
  const [state, setState] = useState({});
  const [attempt, again] = useCounter();
  useEffect(() => {
    const ending = new AbortController();
    const { signal } = ending;
    const fail = (error) => signal.aborted || setState((old) => ({ ...old, error }));
    const ask = async () => {
      if (signal.aborted) return;
      if (!document.hidden) {
        const run = () => call(OPERATIONS, "Explain", messageOf(id), { signal });
        const answer = await retrying(signal, run, fail);
        setState({ answer });
        if (answer.explanation.state === "REQUEST_STATE_ENDED") return;
      }
      setTimeout(() => ask().catch(fail), REFRESH_MS);
    };
    ask().catch(fail);
    return () => ending.abort();
  }, [id, attempt]);
  return { ...state, again };
}

function messageOf(id) {
  const [, requestNumber, scheduler] = OF_SCHEDULER.exec(id) ?? [];
  return requestNumber ? { requestNumber, scheduler } : { requestId: id };
}

function Problem({ error, again }) {
  const isKey = PROBLEMS[error.code] === NEEDS_OPERATOR;
  const giveKey = async () => (await askForKey("")) && again();
  return html`<div class="why-problem" role="alert">
    <p>${PROBLEMS[error.code] ?? "The history cannot be shown."}</p>
    <p class="muted">${error.message}</p>
    ${isKey && html`<button onClick=${giveKey}>Give a key</button>`}
    ${!isKey && !error.isTemporary && html`<button onClick=${again}>Ask again</button>`}
  </div>`;
}

function Explained({ scheduler, explanation }) {
  const { requestId, worker, role, ageNs, code, message, text = {} } = explanation;
  const state = explanation.state.replace("REQUEST_STATE_", "").toLowerCase();
  const place = worker ? `, on ${worker}${role ? ` (${role})` : ""}` : "";
  const since = `${state === "ended" ? "after" : "for"} ${secondsOf(ageNs).toFixed(3)} s`;
  const trace = () => traceOf(`request ${requestId} at ${scheduler}`, text);
  return html`<article>
    <h1><code>${requestId}</code></h1>
    <p aria-live="polite"><strong>${state}</strong> ${since}${place}</p>
    ${code && html`<p class="bad">${message}</p>`}
    <${Timeline} text=${text} end=${Math.max(secondsOf(ageNs), 1e-6)} />
    ${text.summary?.map((line) => html`<p>${line}</p>`)}
    <${Events} lines=${text.lines} />
    <button onClick=${() => saveJson(`${requestId}.trace.json`, JSON.stringify(trace()))}>
      Save for Perfetto
    </button>
    <span class="muted"> a file that ui.perfetto.dev and chrome://tracing open</span>
  </article>`;
}

function Events({ lines = [] }) {
  return html`<table class="table why-events" aria-label="What happened, since the request arrived">
    <thead>
      <tr>
        ${["at", "event", "details"].map((name) => html`<th scope="col">${name}</th>`)}
      </tr>
    </thead>
    <tbody>
      ${lines.map(
        ({ atNs, event, details }) =>
          html`<tr>
            <td>${`${secondsOf(atNs).toFixed(3)} s`}</td>
            <td>${event}</td>
            <td>${details}</td>
          </tr>`,
      )}
    </tbody>
  </table>`;
}

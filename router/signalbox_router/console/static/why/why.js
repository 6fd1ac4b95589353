/** The Why view: what happened to one request, and where its time went. */

import { html, useEffect, useReducer, useState } from "../lib/html.js";
import { askForKey } from "../lib/key.js";
import { OPERATIONS, call, retrying } from "../lib/rpc.js";
import { Latest } from "./latest.js";
import { traceOf } from "./spans.js";
import { Timeline } from "./timeline.js";
import { rowsOf, secondsOf, stateOf, summaryOf } from "./words.js";

const REFRESH_MS = 1000;
const OF_SCHEDULER = /^(\d+)@(.+)$/;
const NEEDS_OPERATOR =
  "What happened to a request is shown to operators alone: it needs an API key with operator: true.";
const PROBLEMS = {
  not_found: "No scheduler knows this request: it is not running, nor among the last that ended.",
  unavailable: "A scheduler or the router does not answer. This page asks again.",
  permission_denied: NEEDS_OPERATOR,
  unauthenticated: NEEDS_OPERATOR,
  invalid_argument: "This cannot be the id of a request.",
};

/** Props: `id` of a request, or NUMBER@SCHEDULER as frames of Watch name it, or empty. */
export function Why({ id }) {
  const find = (event) => {
    event.preventDefault();
    const asked = new FormData(event.target).get("request").trim();
    location.hash = `#/why/${encodeURIComponent(asked)}`;
  };
  return html`<div class="why">
    <form class="why-find" role="search" onSubmit=${find}>
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
    ${id ? html`<${Explanation} key=${id} id=${id} />` : html`<${Latest} />`}
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
  const [attempt, again] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    const ending = new AbortController();
    const { signal } = ending;
    let timer = null;
    const ask = async () => {
      timer = null;
      if (document.hidden) return;
      try {
        const run = () => call(OPERATIONS, "Explain", messageOf(id), { signal });
        const answer = await retrying(signal, run, (error) =>
          setState((old) => ({ ...old, error })),
        );
        setState({ answer });
        if (stateOf(answer.explanation) !== "ended") timer = setTimeout(ask, REFRESH_MS);
        else document.removeEventListener("visibilitychange", follow);
      } catch (error) {
        if (!signal.aborted) setState((old) => ({ ...old, error }));
      }
    };
    const follow = () => timer === null && ask();
    document.addEventListener("visibilitychange", follow);
    ask();
    return () => {
      ending.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", follow);
    };
  }, [id, attempt]);
  return { ...state, again };
}

function messageOf(id) {
  const [, requestNumber, scheduler] = OF_SCHEDULER.exec(id) ?? [];
  return requestNumber ? { requestNumber, scheduler } : { requestId: id };
}

function Problem({ error, again }) {
  const isKey = PROBLEMS[error.code] === NEEDS_OPERATOR;
  return html`<div class="why-problem" role="alert">
    <p>${PROBLEMS[error.code] ?? "The history cannot be shown."}</p>
    <p class="why-muted">${error.message}</p>
    ${isKey && html`<button onClick=${async () => (await askForKey("")) && again()}>Give a key</button>`}
    ${!isKey && !error.isTemporary && html`<button onClick=${again}>Ask again</button>`}
  </div>`;
}

function Explained({ scheduler, explanation }) {
  const { requestId, worker, role, ageNs, code, message } = explanation;
  const state = stateOf(explanation);
  const place = worker ? `, on ${worker}${role ? ` (${role})` : ""}` : "";
  const since = `${state === "ended" ? "after" : "for"} ${secondsOf(ageNs).toFixed(3)} s`;
  return html`<article>
    <h1 class="why-id">${requestId}</h1>
    <p aria-live="polite"><strong>${state}</strong> ${since}${place}</p>
    ${code && html`<p class="why-failure">${message}</p>`}
    <${Timeline} explanation=${explanation} />
    ${summaryOf(explanation).map((line) => html`<p>${line}</p>`)}
    <${Events} events=${explanation.events ?? []} />
    <button onClick=${() => save(`${requestId}.trace.json`, traceOf(scheduler, explanation))}>
      Save for Perfetto
    </button>
    <span class="why-muted"> a file that ui.perfetto.dev and chrome://tracing open</span>
  </article>`;
}

function Events({ events }) {
  return html`<table class="why-table">
    <caption class="visually-hidden">
      What happened, in seconds since the request arrived
    </caption>
    <thead>
      <tr>
        ${["at", "event", "details"].map((name) => html`<th scope="col">${name}</th>`)}
      </tr>
    </thead>
    <tbody>
      ${rowsOf(events).map(
        (row) =>
          html`<tr>
            ${row.map((text) => html`<td>${text}</td>`)}
          </tr>`,
      )}
    </tbody>
  </table>`;
}

function save(name, content) {
  const href = URL.createObjectURL(
    new Blob([JSON.stringify(content)], { type: "application/json" }),
  );
  Object.assign(document.createElement("a"), { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href));
}

/** Sessions that clients name, those last used first: what their turns found, and what broke. */

import { duration, number, percent, secondsOf } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { OPERATIONS, call } from "../lib/rpc.js";

const NUM_SHOWN = 20;
const ASK_MS = 3000;
const COLUMNS = ["session", "turns", "found", "last turn", "where", "idle", "what broke"];
const PLACES = { device: "numDeviceTokens", CPU: "numCpuTokens", store: "numStoreTokens" };

export function Sessions() {
  const sessions = useSessions();
  return html`<section class="panel" aria-label="Sessions" hidden=${!sessions.length}>
    <h2>Sessions</h2>
    <table class="table">
      <thead>
        <tr>
          ${COLUMNS.map((one) => html`<th>${one}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${sessions.map(
          (one) =>
            html`<tr>
              <td>${nameOf(one)}</td>
              ${textsOf(one).map((text) => html`<td>${text}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
}

/** Asks while the page is visible. There are none where nobody can say, as in a recording. */
function useSessions() {
  const [sessions, setSessions] = useState([]);
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    const ask = async () => {
      if (document.hidden) return;
      const found = await call(OPERATIONS, "ListSessions", { maxSessions: NUM_SHOWN }, { signal })
        .then(({ schedulers = [] }) => schedulers.flatMap((one) => one.sessions ?? []))
        .catch(() => []);
      const idle = (one) => secondsOf(one.idleNs);
      found.sort((one, other) => idle(one) - idle(other));
      if (!signal.aborted) setSessions(found.slice(0, NUM_SHOWN));
    };
    ask();
    const timer = setInterval(ask, ASK_MS);
    return () => {
      clearInterval(timer);
      controller.abort();
    };
  }, []);
  return sessions;
}

/** The first digits of its hash, with a link to what happened to its last request. */
function nameOf({ session = "", lastRequestId }) {
  const digits = Array.from(atob(session), (one) =>
    one.charCodeAt(0).toString(16).padStart(2, "0"),
  );
  const name = digits.join("");
  const href = `#/why/${encodeURIComponent(lastRequestId)}`;
  return lastRequestId ? html`<a href=${href}>${name}</a>` : name;
}

function textsOf({
  numTurns = 0,
  total,
  lastTurn,
  numLiveRequests,
  idleNs,
  calledTool,
  lastPrefix,
}) {
  const idle = `${duration(secondsOf(idleNs))}${calledTool ? ", calls a tool" : ""}`;
  return [
    number(numTurns),
    shareOf(total),
    shareOf(lastTurn),
    Object.keys(PLACES)
      .filter((place) => countOf(lastTurn, place))
      .map((place) => `${place} ${number(countOf(lastTurn, place))}`)
      .join(", "),
    numLiveRequests ? "live" : idle,
    brokenBy(lastPrefix),
  ];
}

function countOf(tokens, place) {
  return Number(tokens?.[PLACES[place]] ?? 0);
}

function shareOf(tokens) {
  const found = Object.keys(PLACES).reduce((sum, place) => sum + countOf(tokens, place), 0);
  return tokens?.numPromptTokens ? percent(found / Number(tokens.numPromptTokens)) : "";
}

/** message changed messages[3]: 2,048 tokens. */
function brokenBy({ cause = "PREFIX_CAUSE_UNCHANGED", path = "", numLostTokens = 0 } = {}) {
  if (cause === "PREFIX_CAUSE_UNCHANGED") return "";
  const words = cause.replace("PREFIX_CAUSE_", "").replaceAll("_", " ").toLowerCase();
  return `${`${words} ${path}`.trim()}: ${number(numLostTokens)} tokens`;
}

/** What the server serves, or why it does not, in words. */

import { onLost } from "../lib/connection.js";
import { html, useEffect, useState } from "../lib/html.js";
import { INFERENCE, call, retrying } from "../lib/rpc.js";

function wordsFor({ models = [] }) {
  const [first, ...others] = models.map(({ name }) => name);
  if (!first) return "No model is served yet";
  return others.length ? `Serving ${first} and ${others.length} more` : `Serving ${first}`;
}

/** Asks once, and again when a call of any view finds that the server does not answer. */
export function ServerState() {
  const [state, setState] = useState({ words: "Connecting…" });
  useEffect(() => {
    let control = new AbortController();
    const fail = ({ isCanceled, message, isTemporary }) =>
      isCanceled ||
      setState({ words: isTemporary ? `Trying again: ${message}` : message, isBad: true });
    const look = () => {
      control.abort();
      const { signal } = (control = new AbortController());
      const ask = async () =>
        setState({ words: wordsFor(await call(INFERENCE, "ListModels", {}, { signal })) });
      retrying(signal, ask, fail).catch(fail);
    };
    const stop = onLost(look);
    look();
    return () => {
      stop();
      control.abort();
    };
  }, []);
  return html`<p
    class=${`shell-state ${state.isBad ? "bad" : "muted"}`}
    role="status"
    title=${state.words}
  >
    ${state.words}
  </p>`;
}

import { html } from "../lib/html.js";

export function Why({ id }) {
  return html`<p>Why: the history of request ${id || "(none named)"}.</p>`;
}

import { html } from "../lib/html.js";

export function Live() {
  return html`<p>Live: what the system does now.</p>`;
}

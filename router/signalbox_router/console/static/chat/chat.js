import { html } from "../lib/html.js";

export function Chat() {
  return html`<p>Chat: conversations with a served model.</p>`;
}

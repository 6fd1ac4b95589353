/** The list of conversations, with search, import and export. */

import { date } from "../lib/format.js";
import { useAnswer } from "../lib/hooks.js";
import { html, useState } from "../lib/html.js";
import * as store from "./store.js";

const SEARCH_AFTER_MS = 200;

export function Sidebar({ session, onDone }) {
  const [typed, setTyped] = useState("");
  const { conversations } = session;
  const words = typed.trim();
  const search = (signal) => words && session.guard(() => store.search(words, signal));
  const found = useAnswer(search, SEARCH_AFTER_MS, [words, conversations]) || new Map();
  const isShown = ({ id, title }) =>
    found.has(id) || title.toLowerCase().includes(words.toLowerCase());
  const shown = conversations.filter(isShown);
  const open = (id) => session.open(id, words ? found.get(id) : null).then(onDone);
  return html`<nav class="chat-panel" aria-label="Conversations">
    <button onClick=${() => onDone(session.startNew())}>New conversation</button>
    <input
      id="chat-search"
      type="search"
      placeholder="Search"
      aria-label="Search titles and messages"
      value=${typed}
      onInput=${({ target }) => setTyped(target.value)}
    />
    <ul>
      ${shown.map(
        ({ id, title, updatedAt }) =>
          html`<li key=${id}>
            <button
              class="quiet"
              dir="auto"
              aria-current=${id === session.current.id}
              title=${`${title}\n${date(updatedAt)}`}
              onClick=${() => open(id)}
            >
              ${title || "Without a title"}
            </button>
          </li>`,
      )}
    </ul>
    ${!shown.length && words && html`<p role="status">Nothing found.</p>`}
    <${Files} session=${session} ids=${conversations.map(({ id }) => id)} />
  </nav>`;
}

function Files({ session, ids }) {
  const read = async ({ target }) => {
    await session.importFile(target.files[0]);
    target.value = "";
  };
  return html`<div class="row">
    <label class="button">
      Import
      <input class="visually-hidden" type="file" accept=".json" onChange=${read} />
    </label>
    <button disabled=${!ids.length} onClick=${() => session.exportFile(ids, "conversations")}>
      Export all
    </button>
  </div>`;
}

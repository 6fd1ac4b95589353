/** The list of conversations, with search, import and export. */

import { excerpt } from "./conversations.js";
import { date, saveJson } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";

const SEARCH_AFTER_MS = 200;

export function Sidebar({ session, onDone }) {
  const [query, setQuery] = useState("");
  const found = useSearch(session, query.trim());
  const shown = session.conversations.filter(
    ({ id, title }) => !query.trim() || found.has(id) || excerpt(title, query.trim()),
  );
  const open = (id) => session.open(id, found.get(id)?.message).then(onDone);
  return html`<nav class="chat-sidebar" aria-label="Conversations">
    <button onClick=${() => onDone(session.startNew())}>New conversation</button>
    <input
      id="chat-search"
      type="search"
      placeholder="Search"
      aria-label="Search titles and messages"
      value=${query}
      onInput=${({ target }) => setQuery(target.value)}
    />
    <ul>
      ${shown.map(
        ({ id, title, updatedAt }) =>
          html`<li key=${id}>
            <button
              class="quiet"
              aria-current=${id === session.current.id}
              title=${`${title}\n${date(updatedAt)}`}
              onClick=${() => open(id)}
            >
              <span dir="auto">${title || "Without a title"}</span>
              ${found.has(id) && html`<small dir="auto">${found.get(id).text}</small>`}
            </button>
          </li>`,
      )}
    </ul>
    ${query.trim() && !shown.length && html`<p role="status">Nothing found.</p>`}
    <${Files} session=${session} />
  </nav>`;
}

function useSearch(session, query) {
  const [found, setFound] = useState(new Map());
  useEffect(() => {
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      const result = query && (await session.search(query, controller.signal));
      if (!controller.signal.aborted) setFound(result || new Map());
    }, SEARCH_AFTER_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [query, session.conversations]);
  return query ? found : new Map();
}

function Files({ session }) {
  const ids = session.conversations.map(({ id }) => id);
  const read = async ({ target }) => {
    await session.importFile(target.files[0]);
    target.value = "";
  };
  return html`<div class="chat-row">
    <label class="chat-attach">
      Import
      <input type="file" accept=".json,application/json" onChange=${read} />
    </label>
    <button disabled=${!ids.length} onClick=${() => download(session, ids, "conversations")}>
      Export all
    </button>
  </div>`;
}

/** Saves conversations as a file. */
export async function download(session, ids, name) {
  const text = await session.exportFile(ids);
  if (text === undefined) return;
  saveJson(`${name}.json`, text);
}

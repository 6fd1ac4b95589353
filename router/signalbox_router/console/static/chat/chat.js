/** The view of conversations with a served model. */

import { Composer } from "./composer.js";
import { firstWords } from "./conversations.js";
import { Parameters } from "./parameters.js";
import { useSession } from "./session.js";
import { Sidebar, download } from "./sidebar.js";
import { Transcript } from "./transcript.js";
import { html, useEffect, useState } from "../lib/html.js";
import { isSingleKey, useShortcutList } from "../lib/shortcuts.js";

const focus = (id) => document.getElementById(id)?.focus();

const KEYS = [
  ["Enter", "send"],
  ["Shift+Enter", "new line"],
  ["Esc", "stop the answer"],
  ["Ctrl+Shift+O", "new conversation"],
  ["Ctrl+K", "search"],
  ["Ctrl+,", "settings"],
  ["Alt+↑ ↓", "conversation above, below"],
  ["/", "write"],
];

export function Chat() {
  const session = useSession();
  const [panel, setPanel] = useState("");
  const toggle = (name) => setPanel(panel === name ? "" : name);
  useKeys(session, { setPanel, toggle });
  const { id } = session.current;
  const toField = () => {
    setPanel(panel === "settings" ? panel : "");
    focus("chat-field");
  };
  return html`<div class="chat" data-panel=${panel}>
    <${Sidebar} session=${session} onDone=${toField} />
    <section class="chat-main" aria-label="Conversation">
      <${Header} session=${session} panel=${panel} toggle=${toggle} />
      <${Transcript} key=${`${id} ${session.sought}`} session=${session} />
      <${Status} session=${session} />
      <${Composer} key=${id} session=${session} />
    </section>
    ${panel === "settings" && html`<${Settings} session=${session} />`}
  </div>`;
}

function useKeys(session, { setPanel, toggle }) {
  useShortcutList("Chat", KEYS);
  useEffect(() => {
    const onKeyDown = (event) => {
      const action = actionOf(event, session, { setPanel, toggle });
      if (!action || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      action();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  });
}

/** Returns what a key does, or undefined. */
function actionOf(event, session, { setPanel, toggle }) {
  const { key, altKey, shiftKey } = event;
  const isCommand = event.ctrlKey || event.metaKey;
  if (key === "Escape") return session.generation && (() => session.generation.stop());
  if (isCommand && shiftKey && key.toLowerCase() === "o") return () => session.startNew();
  if (isCommand && key === ",") return () => toggle("settings");
  if (isCommand && key === "k") {
    return () => {
      setPanel("conversations");
      requestAnimationFrame(() => focus("chat-search"));
    };
  }
  if (altKey && (key === "ArrowUp" || key === "ArrowDown")) {
    const at = session.conversations.findIndex(({ id }) => id === session.current.id);
    const next = session.conversations[at + (key === "ArrowUp" ? -1 : 1)];
    return next && (() => session.open(next.id));
  }
  if (key === "/" && isSingleKey(event)) return () => focus("chat-field");
  return undefined;
}

function Header({ session, panel, toggle }) {
  const { current } = session;
  const isStored = session.conversations.some(({ id }) => id === current.id);
  const rename = ({ target }) => {
    const said = session.path.find(({ role }) => role === "user")?.text ?? "";
    session.set({ title: target.value.trim() || firstWords(said) });
  };
  return html`<header class="chat-row">
    <button
      class="chat-narrow"
      aria-expanded=${panel === "conversations"}
      onClick=${() => toggle("conversations")}
    >
      Conversations
    </button>
    <input
      class="chat-title"
      aria-label="Title of the conversation"
      placeholder="New conversation"
      dir="auto"
      value=${current.title}
      onChange=${rename}
    />
    <${Models} session=${session} />
    <button aria-expanded=${panel === "settings"} onClick=${() => toggle("settings")}>
      Settings
    </button>
    <button disabled=${!isStored} onClick=${() => download(session, [current.id], current.title)}>
      Export
    </button>
    <button disabled=${!isStored} onClick=${() => session.remove()}>Delete</button>
  </header>`;
}

function Models({ session }) {
  const { current, models, model } = session;
  const choose = ({ target }) => session.set({ model: target.value });
  const isUnknown = models && current.model && !model;
  return html`<select
    aria-label="Model"
    value=${current.model || model?.name}
    disabled=${!models}
    onChange=${choose}
  >
    ${isUnknown && html`<option value=${current.model}>${current.model} (not served)</option>`}
    ${(models ?? []).map(({ name, adapters = [] }) => [
      html`<option value=${name}>${name}</option>`,
      adapters.map((adapter) => html`<option value=${adapter}>${name} + ${adapter}</option>`),
    ])}
  </select>`;
}

function Status({ session }) {
  const { trouble, notice, generation } = session;
  return html`<div class="chat-status" role="status">
    ${trouble && html`<p>${trouble}</p>`}
    ${
      notice &&
      html`<p>
        <span>${notice.text}</span>
        ${notice.undo && html`<button onClick=${notice.undo}>Undo</button>`}
        <button class="quiet" aria-label="Dismiss" onClick=${() => session.dismiss()}>×</button>
      </p>`
    }
    <span class="visually-hidden">${generation ? "The model answers." : ""}</span>
  </div>`;
}

function Settings({ session }) {
  const { system, params } = session.current;
  const { violations } = session.path.at(-1) ?? {};
  return html`<aside class="chat-settings" aria-label="Settings of the conversation">
    <label>
      <span>System prompt</span>
      <textarea
        rows="5"
        dir="auto"
        value=${system}
        onInput=${({ target }) => session.set({ system: target.value })}
      />
    </label>
    <${Parameters}
      value=${params}
      model=${session.model}
      violations=${violations}
      onChange=${(changed) => session.set({ params: changed })}
    />
  </aside>`;
}

/** The view of conversations with a served model. */

import { Composer } from "./composer.js";
import { Parameters } from "./parameters.js";
import { useSession } from "./session.js";
import { Sidebar } from "./sidebar.js";
import { Transcript } from "./transcript.js";
import { useWindowEvent } from "../lib/hooks.js";
import { html, quietButton, useState } from "../lib/html.js";
import { isSingleKey, useShortcutList } from "../lib/shortcuts.js";

const focus = (id) => document.getElementById(id)?.focus();

const KEYS = [
  ["Enter", "send"],
  ["Shift+Enter", "new line"],
  ["Esc", "stop the answer"],
  ["Ctrl+Shift+O", "new conversation"],
  ["Ctrl+K", "search"],
  ["Ctrl+,", "settings"],
  ["/", "write"],
];

export function Chat() {
  const session = useSession();
  const [panel, setPanel] = useState("");
  const toggle = (name) => setPanel(panel === name ? "" : name);
  useShortcutList("Chat", KEYS);
  useWindowEvent("keydown", (event) => {
    const action = actionOf(event, session, { setPanel, toggle });
    if (!action || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    action();
  });
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
      <${Composer} session=${session} />
    </section>
    ${panel === "settings" && html`<${Settings} session=${session} />`}
  </div>`;
}

/** Returns what a key does, or undefined. */
function actionOf(event, session, { setPanel, toggle }) {
  const { key, shiftKey } = event;
  const isCommand = event.ctrlKey || event.metaKey;
  if (key === "Escape") return session.generation && (() => session.generation.abort());
  if (isCommand && shiftKey && key.toLowerCase() === "o") return () => session.startNew();
  if (isCommand && key === ",") return () => toggle("settings");
  if (isCommand && key === "k") {
    return () => {
      setPanel("conversations");
      requestAnimationFrame(() => focus("chat-search"));
    };
  }
  if (key === "/" && isSingleKey(event)) return () => focus("chat-field");
  return undefined;
}

function Header({ session, panel, toggle }) {
  const { id, title } = session.current;
  const isStored = session.conversations.some((one) => one.id === id);
  const remove = () => confirm(`Delete the conversation “${title}”?`) && session.remove();
  const toggled = (name) => ({ "aria-expanded": panel === name, onClick: () => toggle(name) });
  return html`<header class="row">
    <button class="chat-narrow" ...${toggled("conversations")}>Conversations</button>
    <input
      aria-label="Title of the conversation"
      placeholder="New conversation"
      dir="auto"
      value=${title}
      onChange=${({ target }) => session.set({ title: target.value.trim() })}
    />
    <${Models} session=${session} />
    <button ...${toggled("settings")}>Settings</button>
    <button disabled=${!isStored} onClick=${() => session.exportFile([id], title)}>Export</button>
    <button disabled=${!isStored} onClick=${remove}>Delete</button>
  </header>`;
}

function Models({ session }) {
  const { current, models, model } = session;
  const choices = (models ?? []).flatMap(({ name, adapters = [] }) => [
    [name, name],
    ...adapters.map((adapter) => [adapter, `${name} + ${adapter}`]),
  ]);
  if (models && current.model && !model) {
    choices.unshift([current.model, `${current.model} (not served)`]);
  }
  return html`<select
    aria-label="Model"
    value=${current.model || model?.name}
    disabled=${!models}
    onChange=${({ target }) => session.set({ model: target.value })}
  >
    ${choices.map(([name, label]) => html`<option value=${name}>${label}</option>`)}
  </select>`;
}

function Status({ session }) {
  const { trouble, notice, generation } = session;
  return html`<div class="chat-column" role="status">
    ${trouble && html`<p>${trouble}</p>`}
    ${
      notice &&
      html`<p class="row">
        ${notice} ${quietButton("×", () => session.dismiss(), { "aria-label": "Dismiss" })}
      </p>`
    }
    <span class="visually-hidden">${generation ? "The model answers." : ""}</span>
  </div>`;
}

function Settings({ session }) {
  const { system, params } = session.current;
  return html`<aside class="chat-panel" aria-label="Settings of the conversation">
    <label>
      System prompt
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
      violations=${session.path.at(-1)?.violations}
      onChange=${(changed) => session.set({ params: changed })}
    />
  </aside>`;
}

/** The shell: which view is shown, and what all views share. */

import { Chat } from "./chat/chat.js";
import { useCounter, useWindowEvent } from "./lib/hooks.js";
import { html, render, useEffect, useRef, useState } from "./lib/html.js";
import { askForKey } from "./lib/key.js";
import { isSingleKey, useShortcutList } from "./lib/shortcuts.js";
import { THEMES, chooseTheme, chosenTheme, startTheme } from "./lib/theme.js";
import { Live } from "./live/live.js";
import { Boundary } from "./shell/boundary.js";
import { KeyDialog, ShortcutsDialog } from "./shell/dialogs.js";
import { ServerState } from "./shell/server_state.js";
import { Why } from "./why/why.js";

const VIEWS = { chat: ["Chat", Chat], live: ["Live", Live], why: ["Why", Why] };
const KEYS = [
  ["1 2 3", "Chat, Live, Why"],
  ["?", "this list"],
];

/** The view and the rest of an address such as #/why/ID. */
function placeOf(hash) {
  const [, name, rest = ""] = /^#\/(\w+)(?:\/(.*))?$/.exec(hash) ?? [null, "chat"];
  return { name: Object.hasOwn(VIEWS, name) ? name : "chat", id: decoded(rest) };
}

/** An address may be typed by hand, with a % that begins no character. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function usePlace() {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  useWindowEvent("hashchange", () => setPlace(placeOf(location.hash)));
  return place;
}

/** Names the document after the view; when the view changes it has the focus, unless it took it. */
function useArrival(name, main) {
  const shown = useRef(name);
  useEffect(() => {
    document.title = `${VIEWS[name][0]} · Signalbox`;
    if (shown.current === name) return;
    shown.current = name;
    if (!main.current.contains(document.activeElement)) main.current.focus();
  }, [name]);
}

function useKeys(showHelp) {
  useShortcutList("Everywhere", KEYS);
  useWindowEvent("keydown", (event) => {
    const view = Object.keys(VIEWS)[event.key - 1];
    if (!(view || event.key === "?") || !isSingleKey(event)) return;
    event.preventDefault();
    if (view) location.hash = `#/${view}`;
    else showHelp();
  });
}

function Navigation({ name }) {
  return html`<nav aria-label="Views">
    ${Object.entries(VIEWS).map(
      ([one, [title]]) =>
        html`<a href="#/${one}" aria-current=${one === name ? "page" : null}>${title}</a>`,
    )}
  </nav>`;
}

function Theme() {
  return html`<select aria-label="Theme" onChange=${({ target }) => chooseTheme(target.value)}>
    ${Object.entries(THEMES).map(
      ([choice, words]) =>
        html`<option value=${choice} selected=${choice === chosenTheme()}>${words}</option>`,
    )}
  </select>`;
}

function Shell() {
  const { name, id } = usePlace();
  const [hasHelp, setHasHelp] = useState(false);
  const [numKeys, startAgain] = useCounter(); // a view starts again with another key
  const main = useRef(null);
  useArrival(name, main);
  useKeys(() => setHasHelp(true));
  const changeKey = async () => (await askForKey()) && startAgain();
  return html`<div class="shell">
      <header class="shell-bar row">
        <button class="shell-skip" onClick=${() => main.current.focus()}>Skip to the view</button>
        <${Navigation} name=${name} />
        <${ServerState} key=${numKeys} />
        <${Theme} />
        <button onClick=${changeKey}>Key</button>
        <button aria-label="Shortcuts" title="Keyboard shortcuts" onClick=${() => setHasHelp(true)}>
          ?
        </button>
      </header>
      <main ref=${main} tabindex="-1">
        <${Boundary} key=${`${name} ${numKeys}`}><${VIEWS[name][1]} id=${id} /><//>
      </main>
    </div>
    <${KeyDialog} />
    ${hasHelp && html`<${ShortcutsDialog} onClose=${() => setHasHelp(false)} />`}`;
}

startTheme();
render(html`<${Shell} />`, document.getElementById("app"));

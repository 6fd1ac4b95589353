/** Dialogs that all views share: the API key, and the list of keyboard shortcuts. */

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { getKey, setKey, setKeyDialog } from "../lib/key.js";
import { hasSingleKeys, setSingleKeys, shortcutLists } from "../lib/shortcuts.js";

const NO_KEY = "This server answers calls that have an API key.";

/** A dialog that is open while it is rendered. `onClose` gets the value of the button that closed it. */
function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog
    ref=${dialog}
    aria-labelledby="dialog-title"
    onClose=${({ target }) => onClose(target.returnValue)}
  >
    <form method="dialog">
      <h2 id="dialog-title">${title}</h2>
      ${children}
    </form>
  </dialog>`;
}

/** Asks for the API key when a call, or the user, wants it. */
export function KeyDialog() {
  const [asked, setAsked] = useState(null);
  const field = useRef(null);
  useEffect(() => setKeyDialog((why) => new Promise((answer) => setAsked({ why, answer }))), []);
  if (!asked) return null;
  const onClose = (value) => {
    const key = value === "use" ? field.current.value.trim() : "";
    if (key || value === "forget") setKey(key);
    setAsked(null);
    asked.answer(Boolean(key) || value === "forget");
  };
  return html`<${Dialog} title="API key" onClose=${onClose}>
    ${asked.why && html`<p role="alert">${getKey() ? asked.why : NO_KEY}</p>`}
    <label>
      Key
      <input ref=${field} type="password" autocomplete="off" spellcheck=${false} autofocus />
    </label>
    <p class="muted">
      It is kept for this tab alone, until the tab is closed. Calls of this page carry it in a
      header.
    </p>
    <div class="row">
      <button class="primary" value="use">Use</button>
      <button value="cancel">Cancel</button>
      ${getKey() && html`<button value="forget">Forget it</button>`}
    </div>
  <//>`;
}

export function ShortcutsDialog({ onClose }) {
  return html`<${Dialog} title="Keyboard shortcuts" onClose=${onClose}>
    ${shortcutLists().map(
      ([title, rows]) =>
        html`<h3>${title}</h3>
          <dl class="shell-keys">
            ${rows.map(
              ([keys, does]) =>
                html`<dt><kbd>${keys}</kbd></dt>
                  <dd>${does}</dd>`,
            )}
          </dl>`,
    )}
    <label class="muted">
      <input
        type="checkbox"
        checked=${hasSingleKeys()}
        onChange=${({ target }) => setSingleKeys(target.checked)}
      />
      Shortcuts of one character
    </label>
    <div class="row"><button value="close" autofocus>Close</button></div>
  <//>`;
}

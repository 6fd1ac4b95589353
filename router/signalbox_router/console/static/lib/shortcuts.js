/** Keyboard shortcuts: those of the shell, and the list of all that `?` shows. */

import { useEffect } from "./html.js";
import { ofBrowser } from "./storage.js";

const NAME = "signalbox.singleKeys";
const lists = new Map();

/** Rows of `[keys, what they do]` by the title of the part of the console that has them. */
export function shortcutLists() {
  return [...lists];
}

/** Lists shortcuts under a title while a component is shown. */
export function useShortcutList(title, rows) {
  useEffect(() => {
    lists.set(title, rows);
    return () => lists.delete(title);
  }, [title]);
}

/** False if the user has turned off shortcuts that are one character, as speech may type them. */
export function hasSingleKeys() {
  return ofBrowser.getItem(NAME) !== "off";
}

export function setSingleKeys(isOn) {
  ofBrowser.setItem(NAME, isOn ? "on" : "off");
}

/** Returns whether a key is the user's command, and no part of a text or of another command. */
export function isSingleKey({ target, ctrlKey, altKey, metaKey }) {
  const isTaken = ctrlKey || altKey || metaKey || target.closest("input, textarea, select, dialog");
  return !isTaken && !document.querySelector("dialog[open]") && hasSingleKeys();
}

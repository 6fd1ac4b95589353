/** The API key: kept for this tab alone, and asked for by the shell's dialog. */

import { ofTab } from "./storage.js";

const NAME = "signalbox.key";

let showDialog = async () => false;
let asking = null;
let declined = false;

export function getKey() {
  return ofTab.getItem(NAME) ?? "";
}

export function setKey(key) {
  declined = false;
  if (key) ofTab.setItem(NAME, key);
  else ofTab.removeItem(NAME);
}

/** Sets the function that shows the dialog: it takes the reason, and returns whether a key was given. */
export function setKeyDialog(show) {
  showDialog = show;
}

/** Opens the dialog; calls that ask at the same time share one. Returns whether a key was given. */
export function askForKey(why = "") {
  asking ??= showDialog(why).finally(() => (asking = null));
  return asking;
}

/** Asks as `askForKey`, but not again once the user has declined. */
export async function askForKeyOnce(why) {
  if (declined) return false;
  declined = !(await askForKey(why));
  return !declined;
}

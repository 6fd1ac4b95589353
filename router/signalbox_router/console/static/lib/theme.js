/** Light, dark, or as the system: the choice is kept, and `data-theme` is the theme shown. */

import { ofBrowser } from "./storage.js";

const NAME = "signalbox.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const colors = new Map();

/** Event of the window after the colours have changed, for what draws on a canvas. */
export const THEME_CHANGED = "themechange";
export const THEMES = { system: "System", light: "Light", dark: "Dark" };

export function chosenTheme() {
  const kept = ofBrowser.getItem(NAME);
  return kept in THEMES ? kept : "system";
}

export function chooseTheme(choice) {
  ofBrowser.setItem(NAME, choice);
  show();
}

/** Value of a colour of styles.css, such as "--c1", as #rrggbb. */
export function color(name) {
  if (!colors.has(name)) {
    const both = getComputedStyle(root).getPropertyValue(name).match(/#\w+/g);
    colors.set(name, both[root.dataset.theme === "dark" ? 1 : 0]);
  }
  return colors.get(name);
}

export function startTheme() {
  system.addEventListener("change", show);
  show();
}

function show() {
  const choice = chosenTheme();
  const theme = choice === "system" ? (system.matches ? "dark" : "light") : choice;
  root.dataset.theme = root.style.colorScheme = theme;
  colors.clear();
  dispatchEvent(new Event(THEME_CHANGED));
}

/** Light, dark, or as the system: the choice is kept, and `data-theme` is the theme shown. */

const NAME = "signalbox.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

/** Event of `document` after the colours have changed, for what draws on a canvas. */
export const THEME_CHANGED = "themechange";
export const CHOICES = ["system", "light", "dark"];

export function chosenTheme() {
  const kept = localStorage.getItem(NAME);
  return CHOICES.includes(kept) ? kept : "system";
}

export function chooseTheme(choice) {
  localStorage.setItem(NAME, choice);
  show();
}

/** Value of a custom property of styles.css, such as "--c1". */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function startTheme() {
  system.addEventListener("change", show);
  show();
}

function show() {
  const choice = chosenTheme();
  const theme = choice === "system" ? (system.matches ? "dark" : "light") : choice;
  document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new Event(THEME_CHANGED));
}

/** The renderer: `html` makes elements, without a build step. Text in them never becomes markup. */

import { Component, h, render } from "../vendor/preact.module.js";
import htm from "../vendor/htm.module.js";

export {
  useEffect,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "../vendor/hooks.module.js";
export { Component, h, render };
export const html = htm.bind(h);

/** A button without a border. */
export const quietButton = (label, onClick, props) =>
  html`<button type="button" class="quiet" ...${{ onClick, ...props }}>${label}</button>`;

/** What is drawn on a canvas, in pixels of the screen and colours of the theme. */

import { useCounter, useWindowEvent } from "../lib/hooks.js";
import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { THEME_CHANGED } from "../lib/theme.js";

export const FONT = '11px system-ui, "Liberation Sans", sans-serif';
/** Opacity of what is there, but not in use. */
export const FAINT = 0.4;

/**
 * A canvas as wide as its box, and as high as `heightOf(width)`, on which `draw(context, width)`
 * draws in CSS pixels at each rendering. Other properties are the element's.
 */
export function Canvas({ heightOf, draw, ...rest }) {
  const canvas = useRef(null);
  const [width, setWidth] = useState(0);
  const [, drawAgain] = useCounter();
  useWindowEvent(THEME_CHANGED, drawAgain);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([{ contentRect }]) =>
      setWidth(Math.floor(contentRect.width)),
    );
    observer.observe(canvas.current);
    return () => observer.disconnect();
  }, []);
  const height = heightOf(Math.max(1, width));
  useLayoutEffect(() => {
    const [wide, high] = [width, height].map((one) => Math.round(one * devicePixelRatio));
    Object.assign(canvas.current, { width: wide, height: high }); // which clears it
    const context = canvas.current.getContext("2d");
    context.scale(devicePixelRatio, devicePixelRatio);
    if (width) draw(context, width);
  });
  return html`<canvas ref=${canvas} style=${{ height: `${height}px` }} ...${rest}></canvas>`;
}

/** The sign of a colour in a legend. */
export function Key({ color, isFaint = false }) {
  return html`<i
    class="live-key"
    style=${{ background: `var(${color})`, opacity: isFaint ? FAINT : 1 }}
  ></i>`;
}

/** Canvases that are drawn at each rendering, in pixels of the screen and colours of the theme. */

import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";

/** Opacity of what is there, but not in use. */
export const FAINT = 0.4;

/** Returns a reference for an element, and its width as it is now. */
export function useWidth() {
  const element = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([{ contentRect }]) =>
      setWidth(Math.floor(contentRect.width)),
    );
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

/** A canvas on which `draw(context)` draws in CSS pixels. Other properties are the element's. */
export function Canvas({ width, height, draw, ...rest }) {
  const element = useRef(null);
  useLayoutEffect(() => {
    const canvas = element.current;
    const scale = devicePixelRatio;
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    draw(context);
  });
  return html`<canvas ref=${element} ...${rest}></canvas>`;
}

/** The sign of a colour in a legend. */
export function Key({ color, isFaint = false }) {
  return html`<i
    class="live-key"
    style=${{ background: `var(${color})`, opacity: isFaint ? FAINT : 1 }}
  ></i>`;
}

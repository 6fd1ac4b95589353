/** Canvases that are drawn at each rendering, in pixels of the screen and colours of the theme. */

import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";

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

/** Place of the pointer in an element, in CSS pixels. */
export function placeIn({ currentTarget, clientX, clientY }) {
  const { left, top } = currentTarget.getBoundingClientRect();
  return { x: clientX - left, y: clientY - top };
}

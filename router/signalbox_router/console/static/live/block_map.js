/** A pool as a map of its blocks, 100 to 100,000 of them. */

import { counted, duration, number } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { color } from "../lib/theme.js";
import { Canvas, FAINT, Key } from "./canvas.js";
import { KINDS, blocksOf, contentOf, countsOf, kindsOf } from "./picture.js";

/** Colour of each of KINDS. */
const COLORS = ["--line", "--c3", "--c1", "--c5", "--c2", "--c6", "--c7"];
const FAINT_KIND = KINDS.indexOf("cached");
const MAX_HEIGHT = 160;
const MAX_CELL = 10;
const GAP_FROM = 4; // smaller cells touch

/** Props: `worker`, `name` of the pool, `title`, `requests`, `now`, `onWhy(number)`. */
export function BlockMap({ worker, name, title, requests, now, onWhy }) {
  const [hovered, setHovered] = useState(null);
  const kinds = kindsOf(worker, name);
  const counts = countsOf(kinds);
  const owners = hovered === null ? [] : ownersOf(requests, name, hovered);
  const marked = new Set(owners.flatMap(({ blocks }) => [...blocks.keys()]));
  const find = ({ offsetX, offsetY, currentTarget }) => {
    const { cell, columns } = gridOf(kinds.length, currentTarget.offsetWidth);
    const column = Math.floor(offsetX / cell);
    const block = Math.floor(offsetY / cell) * columns + column;
    return column < columns && block < kinds.length ? block : null;
  };
  return html`<div>
    <h3>${title} <span class="muted">${counted(kinds.length, "block")}</span></h3>
    <ul class="live-row">
      ${KINDS.map(
        (kind, i) =>
          (counts[i] > 0 || i < 2) &&
          html`<li>
            <${Key} color=${COLORS[i]} isFaint=${i === FAINT_KIND} />${kind} ${number(counts[i])}
          </li>`,
      )}
    </ul>
    <${Canvas}
      heightOf=${(width) => gridOf(kinds.length, width).height}
      role="img"
      aria-label=${`${title}: ${KINDS.map((kind, i) => `${counts[i]} ${kind}`).join(", ")}`}
      draw=${(context, width) => drawMap(context, kinds, gridOf(kinds.length, width), marked)}
      onPointerMove=${(event) => setHovered(find(event))}
      onPointerLeave=${() => setHovered(null)}
      onClick=${(event) => {
        const [owner] = ownersOf(requests, name, find(event));
        if (owner) onWhy(owner.number);
      }}
      class=${owners.length ? "live-link" : ""}
    />
    <p class="live-readout">
      ${hovered !== null && wordsOf(hovered, kinds[hovered], owners, worker, now)}
    </p>
  </div>`;
}

function wordsOf(block, kind, owners, { description }, now) {
  const content = owners.length ? [contentOf(description, owners[0].blocks.get(block))] : [];
  const held = owners.slice(0, 3).map(({ number, arrivedS, blocks }) => {
    const age = duration(Math.max(0, now - arrivedS));
    return `request ${number}: ${counted(blocks.size, "block")}, since ${age}`;
  });
  if (owners.length > 3) held.push(`${owners.length - 3} more requests`);
  return [`block ${block}: ${KINDS[kind]}`, ...content, ...held].join(" · ");
}

/** Returns the requests that own a block, each with its number and all its blocks of the pool. */
function ownersOf(requests, pool, block) {
  return [...requests]
    .map(([number, { arrivedS, ...one }]) => ({ number, arrivedS, blocks: blocksOf(one, pool) }))
    .filter(({ blocks }) => blocks.has(block));
}

function gridOf(count, width) {
  let cell = MAX_CELL;
  while (cell > 1 && Math.ceil(count / Math.floor(width / cell)) * cell > MAX_HEIGHT) cell--;
  const columns = Math.max(1, Math.min(count, Math.floor(width / cell)));
  const rows = Math.ceil(count / columns);
  return { cell, columns, rows, height: rows * cell };
}

/** Draws one pixel for each block, and enlarges them; blocks that are not marked fade. */
function drawMap(context, kinds, { cell, columns, rows, height }, marked) {
  if (!kinds.length) return;
  const colors = COLORS.map((name) => rgbOf(color(name)));
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  kinds.forEach((kind, block) => {
    const isFaint = marked.size ? !marked.has(block) : kind === FAINT_KIND;
    pixels[block] = colors[kind] | ((isFaint ? 255 * FAINT : 255) << 24);
  });
  const small = new OffscreenCanvas(columns, rows);
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, columns * cell, height);
  if (cell < GAP_FROM) return;
  for (let x = 1; x <= columns; x++) context.clearRect(x * cell - 1, 0, 1, height);
  for (let y = 1; y <= rows; y++) context.clearRect(0, y * cell - 1, columns * cell, 1);
}

/** Returns #rrggbb as the number of a pixel without alpha. */
function rgbOf(text) {
  const value = parseInt(text.slice(1), 16);
  return ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16);
}

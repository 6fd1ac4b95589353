/** Shows Markdown. Elements are made of a parsed tree, so no text becomes markup or a request. */

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { EMPTY, extend } from "./markdown_parser.js";

const TAGS = { strong: "strong", emphasis: "em", deleted: "del", code: "code" };
const SHOWN_MS = 2000;

const element = (tag, props, children) => html`<${tag} ...${props}>${children}</${tag}>`;

/** Shows a text that may still grow: of a longer one, blocks that are finished stay as they are. */
export function Markdown({ text }) {
  const parsed = useRef(EMPTY);
  const elements = useRef(new WeakMap());
  if (text !== parsed.current.text) parsed.current = extend(parsed.current, text);
  const shown = parsed.current.blocks.map((block) => {
    if (!elements.current.has(block))
      elements.current.set(block, blockOf(block, { ref: directed }));
    return elements.current.get(block);
  });
  return html`<div class="chat-markdown">${shown}</div>`;
}

/** Set at the end: an element that is "auto" already is looked through for each child that it gets. */
const directed = (element) => element && (element.dir = "auto");

/** What is within a block has the direction of its own text by the style sheet. */
function blockOf(block, props = {}) {
  const { type, children } = block;
  const all = (blocks) => blocks.map((one) => blockOf(one));
  if (type === "code") return html`<${Code} ...${block} />`;
  if (type === "rule") return html`<hr />`;
  if (type === "table") return tableOf(block, props);
  if (type === "quote") return element("blockquote", props, all(children));
  if (type === "list") {
    const items = block.items.map((one) => element("li", {}, all(one)));
    const numbers = block.ordered && { start: block.start };
    return element(block.ordered ? "ol" : "ul", { ...props, ...numbers }, items);
  }
  const tag = type === "heading" ? `h${Math.min(6, block.level + 2)}` : "p"; // above are the page's
  return element(tag, props, children.map(inlineOf));
}

function inlineOf(node) {
  if (typeof node === "string") return node;
  const { type, href } = node;
  const children = node.text ?? node.children.map(inlineOf);
  if (type !== "link") return element(TAGS[type], {}, children);
  const apart = { target: "_blank", rel: "noopener noreferrer" };
  return element("a", { href, title: href, ...apart }, children);
}

function tableOf({ align, rows }, props) {
  const rowOf = (tag) => (row) => {
    const cells = row.map((cell, i) =>
      element(tag, { style: { textAlign: align[i] } }, cell.map(inlineOf)),
    );
    return element("tr", {}, cells);
  };
  const head = element("thead", {}, rowOf("th")(rows[0]));
  const body = element("tbody", {}, rows.slice(1).map(rowOf("td")));
  return html`<div class="chat-table" tabindex="0" ...${props}>
    <table>
      ${head}${body}
    </table>
  </div>`;
}

/** Shows characters that turn the direction by their numbers: they make code read as what it is not. */
const withCodes = (text) =>
  text.split(TURNS).map((part, i) => (i % 2 ? html`<mark>U+${numberOf(part)}</mark>` : part));
const TURNS = /([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])/;
const numberOf = (one) => one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");

function Code({ info, text }) {
  return html`<figure class="chat-code" dir="ltr">
    <figcaption><span>${info}</span><${Copy} text=${text} what="the code" /></figcaption>
    <pre tabindex="0"><code>${withCodes(text)}</code></pre>
  </figure>`;
}

/** A button that copies a text, and says whether it did. */
export function Copy({ text, what }) {
  const [said, setSaid] = useState("");
  useEffect(() => {
    const timer = said && setTimeout(() => setSaid(""), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [said]);
  const onClick = async () => setSaid((await copied(text)) ? "Copied" : "Not copied");
  return html`<button type="button" class="quiet" aria-live="polite" onClick=${onClick}>
    ${said || "Copy"}<span class="visually-hidden">${" "}${what}</span>
  </button>`;
}

/** Copies a text. Pages without TLS have no clipboard, but a selection can be copied there. */
async function copied(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return isDone;
}

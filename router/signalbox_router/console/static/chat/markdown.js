/** Shows Markdown: elements are made of the parser's tokens, so no text becomes markup or a request. */

import { h, html, quietButton, useEffect, useRef, useState } from "../lib/html.js";
import { Lexer, Marked } from "../vendor/marked.esm.js";

const MAX_DEPTH = 12; // of quotes and lists; what is deeper is text
const MOST_MARKS = 300; // of one paragraph, heading or cell; one with more is text
const MOST_CHARACTERS = 1 << 18; // a longer text is shown as it is
const MARKS = /[*_~`[\]<(]/g;
const MOST_LAZY = 100; // lines of a quote without its mark, each of which has the parser begin again
const LAZY = /^(?! {0,3}>)./gm;
const SHOWN_MS = 2000;
const LINK = /^(?:https?:\/\/|mailto:)./i;
const TAGS = { strong: "strong", em: "em", del: "del", codespan: "code" };
// No expression looks behind another beginning of what it reads: that would take quadratic time.
const MATHS =
  /^(?:\$\$[^$]+\$\$|\\\[(?:[^\\]|\\[^[\]])+\\\]|\\\((?:[^\\]|\\[^()])+\\\)|\$[^\s$](?:[^$\n]*[^\s$])?\$(?!\d))/;
const STRONG = /^\*\*(?!\s)([^*`\n]+)(?<!\s)\*\*(?!\*)/;

/** Keeps formulas as they are. */
const maths = {
  name: "maths",
  level: "inline",
  start: (text) => /^[^$\\]{0,100}/.exec(text)[0].length, // how far other text reaches, at least
  tokenizer(text) {
    const [raw] = MATHS.exec(text) ?? [];
    return raw && plainly(raw);
  },
};

const asText = () => undefined;
const plainly = (raw) => ({ type: "text", raw, text: raw });

const parser = new Marked({
  extensions: [maths],
  // What returns false leaves the text to the parser's own rule.
  tokenizer: {
    html: asText,
    def: asText,
    lheading: asText, // else a line would be a heading until the list behind it has begun
    blockquote(source) {
      const [raw] = this.rules.block.blockquote.exec(source) ?? [];
      return raw?.match(LAZY)?.length > MOST_LAZY ? plainly(raw) : false;
    },
    /** Rows that lack their cells are filled, which takes quadratic time if all do. */
    table(source) {
      const [raw] = this.rules.block.table.exec(source) ?? [];
      const [header, ...rows] = raw?.trimEnd().split("\n") ?? [""];
      return header.split("|").length * rows.length > 2 * raw?.length ? plainly(raw) : false;
    },
    tag: (text) => (/^<br ?\/?>/i.test(text) ? false : undefined),
    del: (text) => (text.startsWith("~~") ? false : undefined),
    /** By CommonMark, marks beside a bracket need a space, which Chinese and Japanese do not have. */
    emStrong(source) {
      const [raw, text] = STRONG.exec(source) ?? [];
      return raw ? { type: "strong", raw, text, tokens: this.lexer.inlineTokens(text) } : false;
    },
  },
});

/** Leaves as text what would take the parser quadratic time: many marks in one place, and deep nesting. */
class BoundedLexer extends Lexer {
  #depth = 0;

  blockTokens(source, tokens = [], ...others) {
    if (this.#depth > MAX_DEPTH) {
      tokens.push(plainly(source));
      return tokens;
    }
    this.#depth++;
    try {
      return super.blockTokens(source, tokens, ...others);
    } finally {
      this.#depth--;
    }
  }

  inlineTokens(source, tokens = []) {
    const marks = source.match(MARKS)?.length ?? 0;
    if (marks <= MOST_MARKS) return super.inlineTokens(source, tokens);
    tokens.push(plainly(source));
    return tokens;
  }
}

function tokensOf(text) {
  return new BoundedLexer(parser.defaults).lex(text);
}

/** Returns `{text, tokens}` of a text, with the finished blocks of `before`, that of its beginning. */
export function parsed(text, before) {
  if (text.length > MOST_CHARACTERS) return { text, tokens: [plainly(text)] };
  const kept = before && text.startsWith(before.text) ? before.tokens.slice(0, -3) : [];
  const length = kept.reduce((sum, { raw }) => sum + raw.length, 0);
  return { text, tokens: [...kept, ...tokensOf(text.slice(length))] };
}

/** Shows a text that may still grow: of a longer one, blocks that are finished stay as they are. */
export function Markdown({ text }) {
  const shown = useRef(null);
  const elements = useRef(new WeakMap());
  const plain = text.replaceAll("\r\n", "\n");
  if (plain !== shown.current?.text) shown.current = parsed(plain, shown.current);
  const elementOf = (token) => {
    if (!elements.current.has(token)) elements.current.set(token, blockOf(token));
    return elements.current.get(token);
  };
  return html`<div class="chat-markdown">${shown.current.tokens.map(elementOf)}</div>`;
}

/** Set at the end: an element that is "auto" already is looked through for each child that it gets. */
const directed = (element) => element && (element.dir = "auto");

/** Returns the element of a block. The style sheet gives those in it the direction of their own text. */
export function blockOf(token, depth = 0) {
  const { type, tokens, raw } = token;
  const props = depth ? {} : { ref: directed };
  const within = (blocks) => blocks.map((one) => blockOf(one, depth + 1));
  if (type === "space") return null;
  if (type === "hr") return h("hr");
  if (type === "code") return html`<${Code} info=${token.lang} text=${token.text} />`;
  if (type === "table") return tableOf(token, props);
  if (depth > MAX_DEPTH) return h("p", props, raw);
  if (type === "blockquote") return h("blockquote", props, within(tokens));
  if (type === "list") {
    const items = token.items.map((item) => h("li", {}, within(item.tokens)));
    return token.ordered ? h("ol", { start: token.start, ...props }, items) : h("ul", props, items);
  }
  const tag = type === "heading" ? `h${Math.min(6, token.depth + 2)}` : "p"; // above are the page's
  return h(tag, props, tokens ? inline(tokens) : raw);
}

const inline = (tokens, isInLink) => tokens.map((token) => inlineOf(token, isInLink));

/** What is no element here is shown as it is written; an image is a link. Of HTML there is `<br>`. */
function inlineOf({ type, raw, text, href, tokens }, isInLink) {
  if (type in TAGS) return h(TAGS[type], {}, tokens ? inline(tokens, isInLink) : withCodes(text));
  if (type === "br" || type === "html") return "\n";
  if (isInLink || !href || !LINK.test(href)) {
    return type === "text" || type === "escape" ? text : raw;
  }
  const apart = { target: "_blank", rel: "noopener noreferrer" };
  return h("a", { href, title: href, ...apart }, tokens.length ? inline(tokens, true) : href);
}

function tableOf({ header, rows }, props) {
  const rowOf = (tag) => (cells) => {
    const styled = ({ align, tokens }) => h(tag, { style: { textAlign: align } }, inline(tokens));
    return h("tr", {}, cells.map(styled));
  };
  const body = h("tbody", {}, rows.map(rowOf("td")));
  const table = h("table", {}, h("thead", {}, rowOf("th")(header)), body);
  return h("div", { class: "chat-table", tabindex: 0, ...props }, table);
}

/** Shows characters that turn the direction by their numbers: they make code read as what it is not. */
const withCodes = (text) =>
  text.split(TURNS).map((part, i) => (i % 2 ? html`<mark>U+${numberOf(part)}</mark>` : part));
const TURNS = /([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])/;
const numberOf = (one) => one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");

function Code({ info, text }) {
  return html`<figure class="chat-box" dir="ltr">
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
  const onClick = () =>
    copy(text).then(
      () => setSaid("Copied"),
      () => setSaid("Not copied"),
    );
  const label = html`${said || "Copy"}<span class="visually-hidden">${" "}${what}</span>`;
  return quietButton(label, onClick, { "aria-live": "polite" });
}

/** Copies a text. Pages without TLS have no clipboard, but may say what a command to copy takes. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const give = (event) => {
    event.preventDefault();
    event.clipboardData.setData("text/plain", text);
  };
  document.addEventListener("copy", give, { once: true });
  if (!document.execCommand("copy")) throw new Error("The browser does not copy.");
}

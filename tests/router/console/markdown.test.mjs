/** The Markdown of answers, as elements. */

import assert from "node:assert/strict";
import { test } from "node:test";

const { blockOf, parsed } = await import(`${process.env.CHAT}/markdown.js`);

/** Returns elements as text: `p{a em{b}}`, with the attributes of links and lists. */
function outline(node) {
  if (Array.isArray(node)) return node.map(outline).join("");
  if (node === null || typeof node !== "object") return `${node ?? ""}`;
  const { type, props } = node;
  if (typeof type === "function") return `${props.info ?? ""}{${props.text}}`;
  const { href = "", start = "", style } = props;
  return `${type}${href}${start}${style?.textAlign ?? ""}{${outline(props.children)}}`;
}

const blocksOf = (text) => parsed(text).tokens.map((token) => blockOf(token));
const shown = (text) => outline(blocksOf(text));

const INLINE = {
  "a *b* __c__ ~~d~~": "a em{b} strong{c} del{d}",
  "**a *b* c**": "strong{a em{b} c}",
  "**「a」**b": "strong{「a」}b",
  "2 * 3 * 4, a_b_c, (~5) or (~6)": "2 * 3 * 4, a_b_c, (~5) or (~6)",
  "*a **b": "*a **b",
  "\\*a\\* \\# C:\\d": "*a* # C:\\d",
  "`a*b*` ``c`d`` `C:\\`": "code{a*b*} code{c`d} code{C:\\}",
  "$a*b*c$ $$d*e*f$$ \\(g*h*i\\) \\[j_k\\{\\]": "$a*b*c$ $$d*e*f$$ \\(g*h*i\\) \\[j_k\\{\\]",
  "$5 and *that* is $6": "$5 and em{that} is $6",
  "[a](https://b.c/d_(e))": "ahttps://b.c/d_(e){a}",
  "[*a*](mailto:b@c)": "amailto:b@c{em{a}}",
  "see https://a.b/c_d, (http://e.f).":
    "see ahttps://a.b/c_d{https://a.b/c_d}, (ahttp://e.f{http://e.f}).",
  "![a](https://b/c.png)": "ahttps://b/c.png{a}",
  "![](https://b/c.png)": "ahttps://b/c.png{https://b/c.png}",
  "[![a](https://b)](https://c)": "ahttps://c{![a](https://b)}",
  "[a](javascript:b) [c](data:d) [e](/f) [g]( https://":
    "[a](javascript:b) [c](data:d) [e](/f) [g]( https://",
  "[a](<javascript:b> 'c') [d]\n[d]: https://e":
    "[a](<javascript:b> 'c') [d]\n[d]: ahttps://e{https://e}",
  "<b>a</b> &lt; <br>": "<b>a</b> &lt; \n",
};

for (const [text, children] of Object.entries(INLINE)) {
  test(text, () => assert.equal(shown(text), `p{${children}}`));
}

const BLOCKS = {
  "a\nb\n\nc": "p{a\nb}p{c}",
  "# a *b*\nc": "h3{a em{b}}p{c}",
  "a\n---\n* * *": "p{a}hr{}hr{}",
  "```py x\n *a*\n\n~~~\n```\nb": "py x{ *a*\n\n~~~}p{b}",
  "~~~~\n~~~\n``": "{~~~\n``}",
  "$$\na * b *\n$$ *c*": "p{$$\na * b *\n$$ em{c}}",
  "> a\nb\n>> c": "blockquote{p{a\nb}blockquote{p{c}}}",
  "- a\n  - b\n- d\n\n3. e\n   ```\n   f\n   ```":
    "ul{li{p{a}ul{li{p{b}}}}li{p{d}}}ol3{li{p{e}{f}}}",
  "|a|*b*|\n|-|:-:|\n|`e\\|f`|<br>|\n\nh":
    "div{table{thead{tr{th{a}thcenter{em{b}}}}tbody{tr{td{code{e|f}}tdcenter{\n}}}}}p{h}",
  "<div>\n*a*\n</div>": "p{<div>\nem{a}\n</div>}",
};

for (const [text, blocks] of Object.entries(BLOCKS)) {
  test(JSON.stringify(text), () => assert.equal(shown(text), blocks));
}

const PIECES = [
  ..."abcdefgh",
  ...[
    " ",
    "\n",
    "\n",
    "\n\n",
    "  ",
    "    ",
    "- ",
    "1. ",
    "2) ",
    "> ",
    "# ",
    "-",
    "--",
    "---",
    "+ ",
  ],
  ...[
    "`",
    "``",
    "```",
    "~~~\n",
    "*",
    "**",
    "***",
    "_",
    "__",
    "~~",
    "\\",
    "$",
    "$$",
    "\\[\n",
    "\\(",
  ],
  ...["|", "[", "![", "](https://i)", "](javascript:i)", "]", "https://k.l", "(", ")"],
  ...["<", ">", "<script>", "\t", ":", "."],
];

/** Yields texts, the same in each run. */
function* randomTexts(count) {
  let state = 1;
  const below = (bound) => (state = (state * 48271) % 2147483647) % bound;
  for (let i = 0; i < count; i++) {
    yield Array.from({ length: 2 + below(40) }, () => PIECES[below(PIECES.length)]);
  }
}

const TAGS = new Set(
  "div table thead tbody tr th td p h3 h4 h5 h6 hr blockquote ul ol li strong em del code a".split(
    " ",
  ),
);

/** Returns all text of elements, links included, and checks what they are. */
function textOf(node) {
  if (Array.isArray(node)) return node.map(textOf).join("");
  if (node === null || typeof node !== "object") return `${node ?? ""}`;
  const { type, props } = node;
  if (typeof type === "function") return (props.info ?? "") + props.text;
  assert.ok(TAGS.has(type), type);
  const said = textOf(props.children);
  if (type !== "a") return said;
  assert.match(props.href, /^(https?:\/\/|mailto:)./i);
  return said === props.href ? said : said + props.href;
}

const letters = (text) => text.replace(/[^a-z]/g, "");

test("no text is lost, added or moved, and no other element is made", () => {
  for (const pieces of randomTexts(2000)) {
    const text = pieces.join("");
    const blocks = blocksOf(text);
    const said = letters(textOf(blocks));
    // A row may have more cells than its table has columns; those are not shown.
    if (!outline(blocks).includes("table{"))
      assert.equal(said, letters(text), JSON.stringify(text));
  }
});

test("a text that grows is shown as the whole at each step, and keeps finished blocks", () => {
  for (const pieces of randomTexts(200)) {
    let now = null;
    let text = "";
    for (const piece of pieces) {
      text += piece;
      const before = now?.tokens ?? [];
      now = parsed(text, now);
      assert.deepEqual(now, parsed(text), JSON.stringify(text));
      before.slice(0, -3).forEach((token, i) => assert.equal(now.tokens[i], token));
    }
  }
  assert.deepEqual(parsed("d", parsed("- a\n\nb\n\nc")), parsed("d"));
});

const HOSTILE = [
  ...["*", "`", "[", "|", "_", "~", "#", ">", "-", "\\", "$", "(", " ", "\n", "\t", "<"],
  ...[
    "> ",
    "- ",
    "1. ",
    "> - ",
    "**a ",
    "*a _b ",
    "*a b_ ",
    "*a*",
    "**a*",
    "~~a",
    "`a ``b ```c ",
    "~`",
  ],
  ...[
    "[a](",
    "![",
    "](",
    "[a](((",
    "[a](https://",
    "[a]()",
    "https://(",
    "$a",
    "$$a ",
    "\\(",
    "\\[",
  ],
  ...["|-", "|a|\n|-|\n", "a\n", "- a\n\n", "```\n", "$$\n", "|\n", "    - a\n", "a  \n", "<br>"],
];

test("long texts of marks are read", () => {
  // An expression that tries all pairs of places would not end while anyone waits.
  for (const pattern of HOSTILE) blocksOf(`a${pattern.repeat((1 << 17) / pattern.length)}b`);
  for (const pattern of HOSTILE) blocksOf(pattern.repeat((1 << 16) / pattern.length));
});

test("what is nested deeply is text", () => {
  for (const depth of [100, 1 << 16]) {
    const text = textOf(blocksOf(`${"> ".repeat(depth)}a`));
    assert.ok(text.endsWith("> a"));
  }
});

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

HOSTILE.push(
  ...["_a", "*a_", "**a*b", "a_b_c", "<a", "| a", "[![a](", "h_t_t_p", "https://a.b/("],
  ...["> - a\nb\n", "> - - a\nb\n", "> - > a\nb\n", "- a\n  > b\n", "- [ ] a\n"],
);

/** Returns a list of some length, each item of which is one deeper. */
function nestedList(length) {
  const depth = Math.sqrt(length);
  return Array.from({ length: depth }, (_, i) => `${"  ".repeat(i)}- a\n`).join("");
}

/** Returns a table of some length whose rows have one cell of many. */
function sparseTable(length) {
  const count = length / 6;
  return `|${"a|".repeat(count)}\n|${"-|".repeat(count)}\n${"|\n".repeat(count)}`;
}

/** Returns the milliseconds of CPU time that a text takes. */
function cpuTime(text) {
  const before = process.cpuUsage();
  blocksOf(text);
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
}

/** True if the time of a text is short, or grows with its length and not with the square of it. */
function isReadInTime(make) {
  const [half, whole] = [1 << 15, 1 << 16].map((length) => cpuTime(make(length)));
  return whole < 200 || whole < 3 * half;
}

const LONG = Object.fromEntries(
  HOSTILE.flatMap((pattern) => {
    const long = (length) => pattern.repeat(length / pattern.length);
    return [
      [pattern, long],
      [`a${pattern}b`, (length) => `a${long(length)}b`],
    ];
  }),
);
Object.assign(LONG, { nestedList, sparseTable });

for (const [name, make] of Object.entries(LONG)) {
  test(`a long text is read in time: ${JSON.stringify(name)}`, () => {
    // Collecting garbage takes time of its own, so one of three tries has to be in time.
    assert.ok(isReadInTime(make) || isReadInTime(make) || isReadInTime(make));
  });
}

test("a paragraph of very many marks, and a very long text, are shown as they are", () => {
  const marks = "*a* ".repeat(200).trim();
  assert.equal(shown(`${marks}\n\n*b*`), `p{${marks}}p{em{b}}`);
  const long = "*a*\n\n".repeat(1 << 16);
  assert.equal(shown(long), `p{${long}}`);
});

test("what is nested deeply is text", () => {
  for (const depth of [100, 1 << 16]) {
    const text = textOf(blocksOf(`${"> ".repeat(depth)}a`));
    assert.ok(text.endsWith("> a"));
  }
});

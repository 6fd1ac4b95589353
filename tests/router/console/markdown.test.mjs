/** The Markdown of answers, as trees. */

import assert from "node:assert/strict";
import { test } from "node:test";

const { EMPTY, extend, parse } = await import(`${process.env.CHAT}/markdown_parser.js`);

const paragraph = (...children) => ({ type: "paragraph", children });
const strong = (...children) => ({ type: "strong", children });
const emphasis = (...children) => ({ type: "emphasis", children });
const code = (text) => ({ type: "code", text });
const link = (href, ...children) => ({ type: "link", href, children });
const bullets = (...items) => ({ type: "list", ordered: false, start: 1, items });

const INLINE = {
  "a *b* __c__ ~~d~~": [
    "a ",
    emphasis("b"),
    " ",
    strong("c"),
    " ",
    { type: "deleted", children: ["d"] },
  ],
  "**a *b* c**": [strong("a ", emphasis("b"), " c")],
  "***a***": [emphasis(strong("a"))],
  "***a** b*": [emphasis(strong("a"), " b")],
  "**「a」**b": [strong("「a」"), "b"],
  "2 * 3 * 4, a_b_c, ~5": ["2 * 3 * 4, a_b_c, ~5"],
  "*a **b": ["*a **b"],
  "**a [b** c](https://d)": ["**a ", link("https://d", "b** c")],
  "\\*a\\* \\# C:\\d": ["*a* # C:\\d"],
  "`a*b*` ``c`d`` `C:\\`": [code("a*b*"), " ", code("c`d"), " ", code("C:\\")],
  "`a": ["`a"],
  "$a*b*c$ $$d*e*f$$ \\(g*h*i\\) \\[j_k\\{\\]": ["$a*b*c$ $$d*e*f$$ \\(g*h*i\\) \\[j_k\\{\\]"],
  "$5 and *that* is $6": ["$5 and ", emphasis("that"), " is $6"],
  "[a](https://b.c/d_(e))": [link("https://b.c/d_(e)", "a")],
  "[*a*](mailto:b@c)": [link("mailto:b@c", emphasis("a"))],
  "see https://a.b/c_d, (http://e.f).": [
    "see ",
    link("https://a.b/c_d", "https://a.b/c_d"),
    ", (",
    link("http://e.f", "http://e.f"),
    ").",
  ],
  "[https://a](https://b)": [link("https://b", "https://a")],
  "![a](https://b/c.png)": [link("https://b/c.png", "a")],
  "![](https://b/c.png)": [link("https://b/c.png", "https://b/c.png")],
  "[a](javascript:b) [c](data:d) [e](/f) [g]( https://": [
    "[a](javascript:b) [c](data:d) [e](/f) [g]( https://",
  ],
  "<b>a</b> &lt; <br>": ["<b>a</b> &lt; <br>"],
};

for (const [text, children] of Object.entries(INLINE)) {
  test(text, () => assert.deepEqual(parse(text), [paragraph(...children)]));
}

const BLOCKS = {
  "a\nb\n\nc": [paragraph("a\nb"), paragraph("c")],
  "# a *b*\nc": [{ type: "heading", level: 1, children: ["a ", emphasis("b")] }, paragraph("c")],
  "#a": [paragraph("#a")],
  "a\n---\n* * *": [paragraph("a"), { type: "rule" }, { type: "rule" }],
  "```py x\n *a*\n\n~~~\n```\nb": [
    { type: "code", info: "py x", text: " *a*\n\n~~~" },
    paragraph("b"),
  ],
  "~~~~\n~~~\n``": [{ type: "code", info: "", text: "~~~\n``" }],
  "  ```\n  a\n    b": [{ type: "code", info: "", text: "a\n  b" }],
  "$$\n- a * b *\n$$": [paragraph("$$\n- a * b *\n$$")],
  "> a\nb\n>> c\n\nd": [
    { type: "quote", children: [paragraph("a\nb"), { type: "quote", children: [paragraph("c")] }] },
    paragraph("d"),
  ],
  "- a\n  - b\n\n    c\n- d\n+ e": [
    bullets([paragraph("a"), bullets([paragraph("b"), paragraph("c")])], [paragraph("d")]),
    bullets([paragraph("e")]),
  ],
  "3. a\n   ```\n   b\n   ```\n4. c": [
    {
      ...{ type: "list", ordered: true, start: 3 },
      items: [[paragraph("a"), { type: "code", info: "", text: "b" }], [paragraph("c")]],
    },
  ],
  "a | b |\n:--|:-:|--:\nc": [paragraph("a | b |\n:--|:-:|--:\nc")],
  "|a|*b*|c|d|\n|-|:-|:-:|-:|\n|`e\\|f`|<br>|g\nh": [
    {
      type: "table",
      align: [undefined, "left", "center", "right"],
      rows: [
        [["a"], [emphasis("b")], ["c"], ["d"]],
        [[code("e|f")], ["\n"], ["g"]],
      ],
    },
    paragraph("h"),
  ],
};

for (const [text, blocks] of Object.entries(BLOCKS)) {
  test(JSON.stringify(text), () => assert.deepEqual(parse(text), blocks));
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
  ...["|", "|-", "|-|", "[", "![", "](https://i)", "](javascript:i)", "]", "https://k.l", "(", ")"],
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

const FIELDS = {
  paragraph: ["children"],
  heading: ["level", "children"],
  quote: ["children"],
  list: ["ordered", "start", "items"],
  code: ["info", "text"],
  table: ["align", "rows"],
  rule: [],
  strong: ["children"],
  emphasis: ["children"],
  deleted: ["children"],
  link: ["href", "children"],
};

/** Returns all text of a tree, and checks its nodes. */
function textOf(node) {
  if (typeof node === "string") return node;
  if (Array.isArray(node)) return node.map(textOf).join("");
  const { type, ...fields } = node;
  for (const name of Object.keys(fields)) assert.ok(FIELDS[type].includes(name), `${type}.${name}`);
  const said = textOf([
    fields.info ?? "",
    fields.text ?? fields.children ?? fields.items ?? fields.rows ?? [],
  ]);
  if (type === "link") assert.match(fields.href, /^(https?:\/\/|mailto:)./);
  return said + (type === "link" && said !== fields.href ? fields.href : "");
}

const letters = (text) => text.replace(/[^a-z]/g, "");

test("no text is lost, added or moved, and no other node is made", () => {
  for (const pieces of randomTexts(20000)) {
    const text = pieces.join("");
    assert.equal(letters(textOf(parse(text))), letters(text), JSON.stringify(text));
  }
});

test("a text that grows has the tree of the whole at each step, and keeps finished blocks", () => {
  for (const pieces of randomTexts(5000)) {
    let parsed = EMPTY;
    let text = "";
    for (const piece of pieces) {
      text += piece;
      const { blocks } = parsed;
      parsed = extend(parsed, text);
      assert.deepEqual(parsed.blocks, parse(text), JSON.stringify(text));
      blocks.slice(0, -2).forEach((block, i) => assert.equal(parsed.blocks[i], block));
    }
  }
  assert.deepEqual(extend(extend(EMPTY, "- a\n\nb\n\nc"), "d").blocks, [paragraph("d")]);
});

/** Returns how many characters and list entries a function's calls of the language handle. */
function workOf(run) {
  let work = 0;
  const kept = [];
  const count = (prototype, name, sizeOf) => {
    const original = prototype[name];
    kept.push(() => (prototype[name] = original));
    prototype[name] = function (...given) {
      const result = original.apply(this, given);
      work += 1 + sizeOf(result, this, given);
      return result;
    };
  };
  for (const name of ["slice", "trim", "replace", "replaceAll", "repeat"]) {
    count(String.prototype, name, (result) => result.length);
  }
  count(String.prototype, "split", (result, text) => text.length);
  count(Array.prototype, "slice", (result) => result.length);
  count(Array.prototype, "splice", (result) => result.length);
  count(Array.prototype, "findLastIndex", (result, list) => list.length - Math.max(0, result));
  count(Array.prototype, "push", () => 0);
  count(RegExp.prototype, "exec", (result, { sticky }, [text]) => {
    return result ? result[0].length : sticky ? 0 : Math.min(text.length, 1000);
  });
  try {
    run();
  } finally {
    for (const restore of kept) restore();
  }
  return work;
}

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

test("twice the text is twice the work, whatever the text is", () => {
  const textOf = (pattern, length) => pattern.repeat(Math.ceil(length / pattern.length));
  for (const pattern of HOSTILE) {
    const half = workOf(() => parse(textOf(pattern, 1 << 13)));
    const whole = workOf(() => parse(textOf(pattern, 1 << 14)));
    assert.ok(whole < 2.2 * half + 1000, `${JSON.stringify(pattern)}: ${half}, then ${whole}`);
  }
});

test("long texts of marks are read", () => {
  // An expression that tries all pairs of places would not end while anyone waits.
  for (const pattern of HOSTILE) parse(`a${pattern.repeat((1 << 17) / pattern.length)}b`);
  for (const mark of ["*", "`", "[", "|"]) {
    const text = `a${mark.repeat(1 << 20)}`;
    assert.equal(textOf(parse(text)), text);
  }
});

/**
 * Parses Markdown into a plain tree, in time linear in the text, whatever the text is.
 *
 * A block is `{type, ...}`: paragraph, heading (level), code (info, text), quote, list (ordered, start,
 * items of blocks), table (align, rows of cells) or rule. Inline content is a list of texts and
 * `{type, ...}`: strong, emphasis, deleted, code (text), link (href). HTML, maths and links that lead
 * neither to the web nor to a mailbox stay text. An end of a line stays one, as chats show it.
 */

const MAX_DEPTH = 12; // of quotes and lists; what is deeper is text
const MAX_OPEN = 20; // marks of emphasis that wait for their end
// No expression has two repetitions that match the same text: that would take quadratic time.
const FENCE = /^\s*(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})[ \t]/;
const QUOTE = /^ {0,3}> ?/;
const MARKER = /^(\s*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const RULE = /^(?:-{3,}|\*{3,}|_{3,})$/;
const ALIGNS = { ":-": "left", ":-:": "center", "-:": "right" };
const MATHS = { $$: "$$", "\\[": "\\]", "\\(": "\\)" };
const TOKEN =
  /\\?`+|\\[*_~#|>$+.!(){}[\]<-]|\$[^\s$`](?:[^$\n`]*[^\s$`])?\$(?!\d)|\$\$|\*+|_+|~+|!?\[|\]|<br ?\/?>|https?:\/\/[^\s<>()[\]`*"|\\\u3000-\u303f\uff00-\uffef]*(?:\([^\s<>()[\]`*"|\\]*\)[^\s<>()[\]`*"|\\\u3000-\u303f\uff00-\uffef]*)*/gi;
const TARGET =
  /\(<?((?:https?:\/\/|mailto:)[^\s()<>[\]]+(?:\([^\s()<>[\]]*\)[^\s()<>[\]]*)*)>?\)/iy;
const WORD = /[\p{L}\p{N}]/u;

export const EMPTY = { text: "", blocks: [], starts: [] };

/** Returns the tree of a text. */
export const parse = (text) => extend(EMPTY, text).blocks;

/**
 * Returns the parse `{text, blocks, starts}` of a text, with the finished blocks of the parse of its
 * beginning. A line that grows can change the block that it follows, and the one before that.
 */
export function extend(previous, text) {
  const kept = text.startsWith(previous.text) ? Math.max(0, previous.blocks.length - 2) : 0;
  const blocks = previous.blocks.slice(0, kept);
  const starts = previous.starts.slice(0, kept);
  let offset = previous.starts[kept] ?? 0;
  const lines = text.slice(offset).split("\n");
  let line = 0;
  for (const [block, first] of readBlocks(lines, 0)) {
    for (; line < first; line++) offset += lines[line].length + 1;
    starts.push(offset);
    blocks.push(block);
  }
  return { text, blocks, starts };
}

const isBlank = (line) => !/\S/.test(line);
const leading = (line) => /^\s*/.exec(line)[0].length;
const isRule = (line) => /^\s*[-*_]/.test(line) && RULE.test(line.replace(/\s/g, ""));
const isMaths = (line) => line.trim() in MATHS;

/** How each kind of block begins, and what reads it: returns the block, and the line behind it. */
const KINDS = [
  [(lines, i) => fenceAt(lines[i]) !== null, readCode],
  [(lines, i) => isMaths(lines[i]), readMaths],
  [(lines, i) => HEADING.test(lines[i]), readHeading],
  [(lines, i) => isRule(lines[i]), (lines, i) => [{ type: "rule" }, i + 1]],
  [(lines, i) => QUOTE.test(lines[i]), readQuote],
  [(lines, i) => MARKER.test(lines[i]), readList],
  [isTable, readTable],
];
const readerAt = (lines, i) => KINDS.find(([begins]) => begins(lines, i))?.[1];

/** Yields each block with its first line. */
function* readBlocks(lines, depth) {
  for (let i = 0; i < lines.length;) {
    if (isBlank(lines[i])) {
      i++;
      continue;
    }
    const read = depth < MAX_DEPTH ? (readerAt(lines, i) ?? readParagraph) : readRest;
    const [block, next] = read(lines, i, depth);
    yield [block, i];
    i = next;
  }
}

const nested = (lines, depth) => Array.from(readBlocks(lines, depth + 1), ([block]) => block);
const paragraph = (lines) => ({
  type: "paragraph",
  children: parseInline(lines.join("\n").trim()),
});
const readRest = (lines, begin) => [paragraph(lines.slice(begin)), lines.length];

function readParagraph(lines, begin) {
  let end = begin + 1;
  while (end < lines.length && !isBlank(lines[end]) && !readerAt(lines, end)) end++;
  return [paragraph(lines.slice(begin, end)), end];
}

function readMaths(lines, begin) {
  const closing = MATHS[lines[begin].trim()];
  let end = begin + 1;
  while (end < lines.length && lines[end].trim() !== closing) end++;
  return [{ type: "paragraph", children: [lines.slice(begin, ++end).join("\n")] }, end];
}

function readHeading(lines, i) {
  const level = HEADING.exec(lines[i])[1].length;
  return [
    { type: "heading", level, children: parseInline(lines[i].trim().slice(level).trim()) },
    i + 1,
  ];
}

/** Returns the mark that opens code, or null; one of backticks has none behind it on its line. */
function fenceAt(line) {
  const found = FENCE.exec(line);
  return found && !line.slice(found[0].length).includes("`") ? found[1] : null;
}

function readCode(lines, begin) {
  const mark = fenceAt(lines[begin]);
  const indent = leading(lines[begin]);
  const isEnd = (line) => line.startsWith(mark) && line === mark[0].repeat(line.length);
  const code = [];
  let end = begin + 1;
  for (; end < lines.length && !isEnd(lines[end].trim()); end++) {
    code.push(lines[end].slice(Math.min(indent, leading(lines[end]))));
  }
  const info = lines[begin].slice(indent + mark.length).trim();
  return [{ type: "code", info, text: code.join("\n") }, end + 1];
}

/** Returns the lines of a quote or an item, and the line behind; `strip` returns null behind it. */
function linesWithin(lines, begin, strip) {
  const within = [];
  let end = begin;
  for (; end < lines.length; end++) {
    const line = strip(lines[end], end);
    const goesOn = line === null && !isBlank(lines[end]) && !isBlank(lines[end - 1]);
    if (line === null && !(goesOn && !readerAt(lines, end))) break;
    within.push(line ?? lines[end]);
  }
  return [within, end];
}

function readQuote(lines, begin, depth) {
  const strip = (line) => (QUOTE.test(line) ? line.replace(QUOTE, "") : null);
  const [within, end] = linesWithin(lines, begin, strip);
  return [{ type: "quote", children: nested(within, depth) }, end];
}

function readList(lines, begin, depth) {
  const mark = MARKER.exec(lines[begin])[2];
  const ordered = mark.length > 1;
  const items = [];
  let end = begin;
  for (; end < lines.length && !isRule(lines[end]);) {
    const [head, { length: indent }, other] = MARKER.exec(lines[end]) ?? ["", "", ""];
    if (other.at(-1) !== mark.at(-1)) break;
    const first = end;
    const strip = (line, i) => {
      if (i === first) return line.slice(head.length);
      const depth = isBlank(line) ? Infinity : leading(line);
      return depth >= indent + 2 ? line.slice(Math.min(depth, head.length)) : null;
    };
    const [within, next] = linesWithin(lines, end, strip);
    items.push(nested(within, depth));
    end = next;
  }
  return [{ type: "list", ordered, start: ordered ? parseInt(mark, 10) : 1, items }, end];
}

function cellsOf(line) {
  const cells = line
    .trim()
    .replace(/^\|/, "")
    .split(/(?<!\\)\|/);
  if (cells.length > 1 && isBlank(cells.at(-1))) cells.pop();
  return cells.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function isTable(lines, i) {
  const below = lines[i + 1] ?? "";
  if (!lines[i].includes("|") || !/^[\s|:-]+$/.test(below)) return false;
  const marks = cellsOf(below);
  return marks.every((one) => /^:?-+:?$/.test(one)) && marks.length === cellsOf(lines[i]).length;
}

function readTable(lines, begin) {
  const align = cellsOf(lines[begin + 1]).map((one) => ALIGNS[one.replace(/-+/, "-")]);
  const rowOf = (line) => cellsOf(line).map((cell) => parseInline(cell, true));
  const rows = [rowOf(lines[begin])];
  let end = begin + 2;
  for (; end < lines.length && lines[end].includes("|"); end++) rows.push(rowOf(lines[end]));
  return [{ type: "table", align, rows }, end];
}

/** Returns the marks of a text: of those that open code or maths, `close` is the index of the other. */
function tokensOf(text) {
  const tokens = Array.from(text.matchAll(TOKEN), ({ 0: mark, index }) => {
    return { mark, index, end: index + mark.length };
  });
  const next = {};
  for (let k = tokens.length - 1; k >= 0; k--) {
    const { mark } = tokens[k];
    tokens[k].close = next[mark[0] === "`" ? mark : MATHS[mark]];
    next[mark.replace(/^\\`/, "`")] = k; // code may end with a backslash
  }
  return tokens;
}

/** Gives the brackets of each link its element: `[text](target)`, with no link in the text. */
function findLinks(text, tokens) {
  let open = [];
  for (let k = 0; k < tokens.length; k++) {
    const { mark, end, close } = tokens[k];
    if (close !== undefined) k = close;
    else if (mark === "[" || mark === "![") open.push(tokens[k]);
    else if (mark === "]" && open.length) {
      const opening = open.pop();
      TARGET.lastIndex = end;
      const [target, href] = TARGET.exec(text) ?? [];
      if (!href) continue;
      tokens[k].link = opening.link = { type: "link", href };
      tokens[k].end += target.length;
      open = [];
    }
  }
}

/** Inline content that is being read: a frame for each mark that waits for its end. */
class Frames {
  open = [{ mark: "", count: 0, children: [] }];

  add(node, { children } = this.open.at(-1)) {
    if (typeof node === "string" && typeof children.at(-1) === "string")
      node = children.pop() + node;
    if (node !== "") children.push(node);
  }

  push(mark, count) {
    this.open.push({ mark, count, children: [] });
  }

  /** Makes text of the marks above a frame, and returns the frame's children. */
  flatten(k) {
    for (const { mark, count, children } of this.open.splice(k + 1)) {
      this.add(mark.repeat(count));
      for (const child of children) this.add(child);
    }
    return this.open[k].children;
  }

  /** Ends emphasis with up to `count` marks; returns how many had no beginning. */
  close(mark, count) {
    const k = this.open.findLastIndex((one) => one.mark === mark || one.mark === "[");
    if (count === 0 || this.open[k]?.mark !== mark) return count;
    const used = Math.min(2, count, this.open[k].count);
    const type = mark === "~" ? "deleted" : used === 2 ? "strong" : "emphasis";
    const node = { type, children: this.flatten(k) };
    const { count: waiting } = this.open.pop();
    if (waiting > used) this.push(mark, waiting - used);
    this.add(node);
    return this.close(mark, count - used);
  }

  closeLink(link) {
    const children = this.flatten(this.open.findLastIndex(({ mark }) => mark === "["));
    this.open.pop();
    this.add({ ...link, children: children.length ? children : [link.href] });
  }
}

function parseInline(text, isCell = false) {
  const tokens = tokensOf(text);
  findLinks(text, tokens);
  const frames = new Frames();
  let at = 0;
  let isInLink = false;
  for (let k = 0; k < tokens.length; k++) {
    const { mark, index, link, close } = tokens[k];
    if (index < at) continue; // within a link's target
    frames.add(text.slice(at, index));
    at = tokens[close ?? k].end;
    if (close !== undefined) {
      k = close;
      frames.add(spanOf(mark, text.slice(index, at)));
    } else if (link) {
      if (isInLink) frames.closeLink(link);
      else frames.push("[", 1);
      isInLink = !isInLink;
    } else if (/^[*_~]/.test(mark)) {
      addEmphasis(frames, mark, text[index - 1] ?? " ", text[at] ?? " ");
    } else if (/^http/i.test(mark) && !isInLink) {
      while (/[.,:;!?'_~]/.test(text[at - 1]) && at > index) at--; // of the sentence
      const href = text.slice(index, at);
      frames.add(/\/\/./.test(href) ? { type: "link", href, children: [href] } : href);
    } else if (isCell && mark[0] === "<") frames.add("\n");
    else frames.add(/^\\[^(){}[\]]/.test(mark) ? mark.slice(1) : mark);
  }
  frames.add(text.slice(at));
  return frames.flatten(0);
}

/** Returns code without its marks; maths as it is. */
function spanOf(mark, span) {
  if (mark[0] !== "`") return span;
  const text = span.slice(mark.length, -mark.length).replaceAll("\n", " ");
  const isPadded = text.startsWith(" ") && text.endsWith(" ") && !isBlank(text);
  return { type: "code", text: isPadded ? text.slice(1, -1) : text };
}

function addEmphasis(frames, mark, before, after) {
  const isInWord = mark[0] === "_" && WORD.test(before) && WORD.test(after);
  const isMark = !isInWord && (mark[0] === "~" ? mark.length === 2 : mark.length <= 3);
  const left = isMark && !isBlank(before) ? frames.close(mark[0], mark.length) : mark.length;
  const canOpen = isMark && !isBlank(after) && frames.open.length <= MAX_OPEN;
  if (left && canOpen) frames.push(mark[0], left);
  else frames.add(mark[0].repeat(left));
}

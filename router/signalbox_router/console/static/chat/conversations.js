/**
 * Conversations as data: trees of messages, without DOM, storage or network.
 *
 * A conversation is `{id, title, createdAt, updatedAt, model, system, params, selected, messages}`:
 * `messages` is a Map of messages by id; `selected[parent]` is the child that is shown of a message,
 * `selected[""]` the first message; `params` is what a ChatRequest has beside model and messages, as
 * proto3 JSON: `{samplingParams, tools, toolChoice, thinking, ...}`. No function changes its arguments.
 *
 * A message is `{id, parent, role, text, reasoning, toolCalls, toolCallId, logprobs, usage, error,
 * requestId, model, timing, createdAt, params, finish}`; `parent` is null for a first one, and `finish` is the
 * RPC's Finish, or `{reason: "STOPPED"}` if the user stopped the answer.
 */

const FORMAT = "signalbox.conversations";
const VERSION = 1;
const ROLES = {
  system: "CHAT_ROLE_SYSTEM",
  user: "CHAT_ROLE_USER",
  assistant: "CHAT_ROLE_ASSISTANT",
  tool: "CHAT_ROLE_TOOL",
};

/** Returns an id that sorts by time; `crypto.randomUUID` is absent from pages without TLS. */
export function newId(now = Date.now()) {
  const random = crypto.getRandomValues(new Uint32Array(3));
  return now.toString(36).padStart(9, "0") + Array.from(random, (n) => n.toString(36)).join("");
}

export function newConversation({ model = "", now = Date.now() } = {}) {
  const times = { createdAt: now, updatedAt: now };
  const settings = { title: "", model, system: "", params: {} };
  return { id: newId(now), ...times, ...settings, selected: {}, messages: new Map() };
}

/** Returns a conversation without its messages. */
export function headOf({ messages, ...head }) {
  return head;
}

export function newMessage({ parent, role, now = Date.now(), ...fields }) {
  const said = { text: "", reasoning: "", toolCalls: [], logprobs: [], ...fields };
  return { id: newId(now), parent: parent ?? null, role, createdAt: now, ...said };
}

/** Returns a function that keeps its result for each argument, as long as that lives. */
function remembering(work) {
  const results = new WeakMap();
  return (argument) => {
    if (!results.has(argument)) results.set(argument, work(argument));
    return results.get(argument);
  };
}

/** Returns the ids of the children of each message, oldest first; null has the first messages. */
const childrenOf = remembering((messages) => {
  const children = new Map();
  for (const { id, parent } of [...messages.values()].sort((a, b) => a.createdAt - b.createdAt)) {
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(id);
  }
  return children;
});

/** Returns the messages that are shown, first to last: of siblings the selected or else the newest. */
export const pathOf = remembering(({ messages, selected }) => {
  const children = childrenOf(messages);
  const path = [];
  for (let ids = children.get(null); ids; ids = children.get(path.at(-1).id)) {
    const chosen = selected[path.at(-1)?.id ?? ""];
    path.push(messages.get(ids.includes(chosen) ? chosen : ids.at(-1)));
  }
  return path;
});

/** Returns the ids of a message and its alternatives, oldest first. */
export function siblingsOf({ messages }, { parent }) {
  return childrenOf(messages).get(parent) ?? [];
}

/** Returns the conversation with a message added or replaced; an added one is selected. */
export function withMessage(conversation, message) {
  const messages = new Map(conversation.messages).set(message.id, message);
  const isNew = !conversation.messages.has(message.id);
  const selected = isNew
    ? { ...conversation.selected, [message.parent ?? ""]: message.id }
    : conversation.selected;
  const title = conversation.title || (message.role === "user" ? firstWords(message.text) : "");
  const updatedAt = Math.max(conversation.updatedAt, message.createdAt);
  return { ...conversation, messages, selected, title, updatedAt };
}

/** Returns the conversation with the path leading through a message. */
export function choose(conversation, id) {
  const { messages } = conversation;
  const selected = { ...conversation.selected };
  for (let one = messages.get(id); one; one = messages.get(one.parent)) {
    selected[one.parent ?? ""] = one.id;
  }
  return { ...conversation, selected };
}

/** Returns the calls of the path's last answer that have no result yet. */
export function openCalls(path) {
  const index = path.findLastIndex(({ role }) => role === "assistant");
  const results = new Set(path.slice(index + 1).map(({ toolCallId }) => toolCallId));
  const isOver = path.slice(index + 1).some(({ role }) => role !== "tool");
  return index < 0 || isOver ? [] : path[index].toolCalls.filter(({ id }) => !results.has(id));
}

/** Returns the ChatRequest that asks for what follows the path. */
export function requestFor({ model, system, params }, path) {
  const messages = path.filter(isSaid).map(turnOf);
  if (system.trim()) messages.unshift({ role: ROLES.system, content: [{ text: system }] });
  return { ...params, model: model || undefined, messages };
}

/** False for an answer that failed before it began. */
const isSaid = ({ role, text, toolCalls }) => role !== "assistant" || text || toolCalls.length > 0;

function turnOf({ role, text, reasoning, toolCalls, toolCallId }) {
  const content = text || role !== "assistant" ? [{ text }] : [];
  return {
    role: ROLES[role],
    content,
    reasoning: reasoning || undefined,
    toolCalls: toolCalls.length ? toolCalls : undefined,
    toolCallId,
  };
}

/** Returns the beginning of a text as a title. */
export function firstWords(text, length = 60) {
  const line = text.trim().replace(/\s+/g, " ");
  if (line.length <= length) return line;
  const end = line.lastIndexOf(" ", length - 1);
  return `${line.slice(0, end > length / 2 ? end : length - 1).trimEnd()}…`;
}

/** Returns what surrounds the first occurrence of a query, in any case; null if there is none. */
export function excerpt(text, query, around = 40) {
  const at = text.toLowerCase().indexOf(query.toLowerCase());
  if (at < 0) return null;
  const begin = Math.max(0, at - around);
  const end = at + query.length + around;
  const cut = text.slice(begin, end).replace(/\s+/g, " ").trim();
  return `${begin > 0 ? "…" : ""}${cut}${end < text.length ? "…" : ""}`;
}

/** Returns a text quoted as a block of code under its name, whatever it contains. */
export function quoted(name, text) {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** Returns all messages, each behind the one that it follows. */
function inOrder(messages) {
  const children = childrenOf(messages);
  const ids = [...(children.get(null) ?? [])];
  for (const id of ids) ids.push(...(children.get(id) ?? []));
  return ids.map((id) => messages.get(id));
}

/** Returns conversations as the text of a file. */
export function toFile(conversations) {
  const listed = conversations.map((one) => ({ ...one, messages: inOrder(one.messages) }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations: listed }, null, 1);
}

/** Returns the conversations of a file, with new ids. Throws an Error that says what is wrong. */
export function fromFile(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`The file is not JSON, or is cut: ${error.message}`);
  }
  if (file?.format !== FORMAT) throw new Error("The file holds no conversations of this console.");
  if (file.version !== VERSION) {
    throw new Error(`The file has version ${file.version}; this console reads version ${VERSION}.`);
  }
  const isList = Array.isArray(file.conversations) && file.conversations.length > 0;
  check(isList, "The file has no list of conversations, or an empty one.");
  return file.conversations.map((one, index) => imported(one, `Conversation ${index + 1}`));
}

function check(isRight, complaint) {
  if (!isRight) throw new Error(complaint);
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isText = (value) => typeof value === "string";
const textOf = (value) => (isText(value) ? value : "");
const isTime = (value) => typeof value === "number" && !Number.isNaN(new Date(value).getTime());
const isToken = (one) => isObject(one) && isText(one.text ?? "");

function imported(found, name) {
  check(isObject(found) && Array.isArray(found.messages), `${name} has no messages.`);
  const { title, model, system, params, createdAt, updatedAt } = found;
  const ids = new Map([["", ""]]);
  const messages = new Map();
  found.messages.forEach((one, index) => {
    const message = importedMessage(one, ids, `${name}, message ${index + 1}`);
    messages.set(message.id, message);
  });
  const pairs = Object.entries(isObject(found.selected) ? found.selected : {});
  const known = pairs.filter((pair) => pair.every((id) => ids.has(id)));
  return {
    ...newConversation({ model: textOf(model) }),
    title: textOf(title),
    system: textOf(system),
    params: isObject(params) ? importedParams(params) : {},
    ...(isTime(createdAt) && { createdAt }),
    ...(isTime(updatedAt) && { updatedAt }),
    selected: Object.fromEntries(known.map((pair) => pair.map((id) => ids.get(id)))),
    messages,
  };
}

function importedParams({ tools, toolChoice, ...others }) {
  const areTools = Array.isArray(tools) && tools.every((one) => isText(one?.name));
  const isChoice = isObject(toolChoice) && Object.values(toolChoice).every(isText);
  return { ...others, ...(areTools && { tools }), ...(isChoice && { toolChoice }) };
}

/** A parent must come before its children, so no file makes a circle. */
function importedMessage(found, ids, name) {
  check(isObject(found), `${name} is not an object.`);
  const { id, parent, role, text, reasoning, toolCalls = [], logprobs = [], createdAt } = found;
  check(isText(id) && id && !ids.has(id), `${name} has no id of its own.`);
  check(parent === null || (parent && ids.has(parent)), `${name} answers no message before it.`);
  check(Object.hasOwn(ROLES, role), `${name} has the role ${JSON.stringify(role)}.`);
  check(isText(text), `${name} has no text.`);
  check(isTime(createdAt), `${name} has no time.`);
  const isCall = (call) => isObject(call) && [call.id, call.name, call.arguments].every(isText);
  check(Array.isArray(toolCalls) && toolCalls.every(isCall), `${name} has a broken tool call.`);
  const isPosition = ({ sampled, top = [] }) =>
    Array.isArray(top) && [sampled, ...top].every(isToken);
  const areTokens =
    Array.isArray(logprobs) && logprobs.every((one) => isObject(one) && isPosition(one));
  check(areTokens, `${name} has broken log probabilities.`);
  ids.set(id, newId());
  const renamed = { id: ids.get(id), parent: parent && ids.get(parent) };
  const texts = ["toolCallId", "error", "model"].filter((field) => isText(found[field]));
  const objects = ["usage", "timing", "params", "finish"].filter((field) => isObject(found[field]));
  return {
    ...Object.fromEntries([...texts, ...objects].map((field) => [field, found[field]])),
    ...{ ...renamed, role, text, reasoning: textOf(reasoning), toolCalls, logprobs, createdAt },
  };
}

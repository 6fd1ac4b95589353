/**
 * Conversations as data: trees of messages, without DOM, storage or network.
 *
 * A conversation is `{id, title, createdAt, updatedAt, model, system, params, selected, messages}`:
 * `messages` is a Map of messages by id; `selected[parent]` is the child that is shown of a message,
 * `selected[""]` the first message; `params` is what a ChatRequest has beside model and messages, as
 * proto3 JSON, but for `tools`, which are as typed. No function changes its arguments.
 *
 * A message is `{id, parent, role, text, reasoning, toolCalls, toolCallId, logprobs, usage, error,
 * requestId, model, timing, createdAt, params, finish}`; `parent` is null for a first one, and `finish` is the
 * RPC's Finish, or `{reason: "STOPPED"}` if the user stopped the answer.
 */

import { isText, knownParams } from "./fields.js";

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
  const settings = { title: "", model, system: "", params: {}, selected: {} };
  return { id: newId(now), createdAt: now, updatedAt: now, ...settings, messages: new Map() };
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
  const tools = params.tools && [].concat(params.tools).map(toolOf);
  return { ...params, tools, model: model || undefined, messages };
}

/** Returns a tool of a ChatRequest, whose schema is a text, from one in the form of OpenAI's API. */
function toolOf(typed) {
  const { name, description, parameters, strict } = typed?.function ?? typed ?? {};
  const schema = typeof parameters === "string" ? parameters : JSON.stringify(parameters);
  return { name, description, parameters: schema, strict };
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

/** Returns a text quoted as a block of code under its name, whatever it contains. */
export function quoted(name, text) {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** Returns conversations as the text of a file. */
export function toFile(conversations) {
  const listed = conversations.map((one) => ({ ...one, messages: [...one.messages.values()] }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations: listed }, null, 1);
}

/** Returns the conversations of a file, with new ids. Throws an Error that says what is wrong. */
export function fromFile(text) {
  let file;
  try {
    file = JSON.parse(text, (_, value) => value ?? undefined); // what is null is absent
  } catch (error) {
    throw new Error(`The file is not JSON, or is cut: ${error.message}`);
  }
  if (file?.format !== FORMAT) throw new Error("The file holds no conversations of this console.");
  if (file.version !== VERSION) {
    throw new Error(`The file has version ${file.version}; this console reads version ${VERSION}.`);
  }
  if (!Array.isArray(file.conversations) || !file.conversations.length) {
    throw new Error("The file has no list of conversations, or an empty one.");
  }
  return file.conversations.map((one, index) => imported(one ?? {}, `Conversation ${index + 1}`));
}

const textOf = (value) => (isText(value) ? value : "");

const isTime = (value) => new Date(value).getTime() === value;
const isCall = (one) => [one?.id, one?.name, one?.arguments].every(isText);
const isToken = (one) => one && isText(one.text ?? "");
const isPosition = ({ sampled, top = [] } = {}) =>
  Array.isArray(top) && [sampled, ...top].every(isToken);

/** True if a message of a file can be shown: one that breaks the page would do so at each visit. */
function isWhole(message) {
  const { id, parent = "", text, reasoning = "", toolCalls = [], logprobs = [] } = message;
  if (!Array.isArray(toolCalls) || !Array.isArray(logprobs)) return false;
  const isSaid = [id, parent, text, reasoning].every(isText) && isTime(message.createdAt);
  const isKnown = Object.hasOwn(ROLES, message.role);
  return isSaid && isKnown && [...toolCalls].every(isCall) && [...logprobs].every(isPosition);
}

function imported({ title, model, system, params, selected, messages, updatedAt }, name) {
  if (!Array.isArray(messages) || !messages.length) throw new Error(`${name} has no messages.`);
  const wrong = messages.findIndex((one) => !isWhole(one ?? {}));
  if (wrong >= 0) throw new Error(`${name}: message ${wrong + 1} is broken.`);
  const whole = messages.map((one) => [one.id, newMessage(one)]);
  return {
    ...newConversation({ model: textOf(model), now: isTime(updatedAt) ? updatedAt : Date.now() }),
    title: textOf(title),
    system: textOf(system),
    params: knownParams(params ?? {}),
    selected: { ...selected },
    messages: reachable(new Map(whole)),
  };
}

/** Returns the messages that follow a first one: in a file, some may follow each other in a circle. */
function reachable(messages) {
  const children = childrenOf(messages);
  const ids = [...(children.get(null) ?? [])];
  for (const id of ids) ids.push(...(children.get(id) ?? []));
  return new Map(ids.map((id) => [id, messages.get(id)]));
}

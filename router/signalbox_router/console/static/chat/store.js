/**
 * Conversations in IndexedDB, a record for each and one for each message.
 *
 * So tabs that add to the same conversation do not overwrite each other's messages; a change of a
 * conversation names the fields that it sets.
 */

import { excerpt, headOf } from "./conversations.js";

const ROWS_AT_ONCE = 500;
const FULL =
  "The browser's storage is full: what is new is lost with this page. Export conversations and delete some.";

const channel = new BroadcastChannel("signalbox.conversations");
let opened = null;

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("signalbox", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: ["conversation", "id"] });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Runs `work` with both stores in one transaction; returns what it returns, once that is done. */
async function transact(mode, work) {
  try {
    const database = await (opened ??= open());
    const names = ["conversations", "messages"];
    const transaction = database.transaction(names, mode);
    const result = work(...names.map((name) => transaction.objectStore(name)));
    await new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    if (mode === "readwrite") channel.postMessage("changed");
    return result;
  } catch (error) {
    if (error?.name === "QuotaExceededError") throw new Error(FULL, { cause: error });
    const reason = error?.message || "it gives no reason.";
    throw new Error(`The browser does not keep conversations: ${reason}`, { cause: error });
  }
}

const rowsOf = (id) => IDBKeyRange.bound([id], [id, []]);

/** Calls `listener` after each change by another tab. */
export function onOtherTab(listener) {
  channel.onmessage = listener;
}

/** Returns all conversations, without their messages. */
export async function list() {
  return (await transact("readonly", (heads) => heads.getAll())).result;
}

/** Returns a whole conversation; null if there is none. */
export async function load(id) {
  const read = (heads, rows) => [heads.get(id), rows.getAll(rowsOf(id))];
  const [head, rows] = await transact("readonly", read);
  const messages = rows.result.map(({ conversation, ...message }) => [message.id, message]);
  return head.result ? { ...head.result, messages: new Map(messages) } : null;
}

/** Stores whole conversations. */
export async function add(conversations) {
  await transact("readwrite", (heads, rows) => {
    for (const one of conversations) {
      heads.put(headOf(one));
      for (const message of one.messages.values()) rows.put({ ...message, conversation: one.id });
    }
  });
}

/** Sets fields of a conversation and adds messages, or replaces them; one that is deleted stays so. */
export async function change(id, fields, messages = []) {
  await transact("readwrite", (heads, rows) => {
    heads.get(id).onsuccess = ({ target: { result: found } }) => {
      if (!found) return;
      heads.put({ ...found, ...fields, selected: { ...found.selected, ...fields.selected } });
      for (const message of messages) rows.put({ ...message, conversation: id });
    };
  });
}

export async function remove(id) {
  await transact("readwrite", (heads, rows) => {
    heads.delete(id);
    rows.delete(rowsOf(id));
  });
}

/** Returns `{message, text}` by conversation: the last message with the words, and an excerpt. */
export async function search(query, signal) {
  const found = new Map();
  for (let after = []; after && !signal.aborted;) {
    const range = IDBKeyRange.lowerBound(after, true);
    const { result } = await transact("readonly", (_, rows) => rows.getAll(range, ROWS_AT_ONCE));
    for (const { id, conversation, text } of result) {
      const part = excerpt(text, query);
      if (part) found.set(conversation, { message: id, text: part });
    }
    const last = result.length === ROWS_AT_ONCE && result.at(-1);
    after = last && [last.conversation, last.id];
  }
  return found;
}

/**
 * Conversations in IndexedDB, a record for each and one for each message.
 *
 * So tabs that add to the same conversation do not overwrite each other's messages; a change of a
 * conversation names the fields that it sets.
 */

const NAMES = ["conversations", "messages"];
const FULL =
  "The browser's storage is full: what is new is lost with this page. Export conversations and delete some.";

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
    const transaction = (await (opened ??= open())).transaction(NAMES, mode);
    const result = work(...NAMES.map((name) => transaction.objectStore(name)));
    await new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    return result;
  } catch (error) {
    if (error?.name === "QuotaExceededError") throw new Error(FULL, { cause: error });
    const reason = error?.message || "it gives no reason.";
    throw new Error(`The browser does not keep conversations: ${reason}`, { cause: error });
  }
}

const rowsOf = (id) => IDBKeyRange.bound([id], [id, []]);

export const byTime = (a, b) => b.updatedAt - a.updatedAt;

/** Returns all conversations without their messages, the latest first. */
export async function list() {
  const { result } = await transact("readonly", (heads) => heads.getAll());
  return result.sort(byTime);
}

/** Returns a whole conversation; null if there is none. */
export async function load(id) {
  const read = (heads, rows) => [heads.get(id), rows.getAll(rowsOf(id))];
  const [head, rows] = await transact("readonly", read);
  const messages = new Map(rows.result.map((message) => [message.id, message]));
  return head.result ? { ...head.result, messages } : null;
}

/** Stores whole conversations. */
export async function add(conversations) {
  await transact("readwrite", (heads, rows) => {
    for (const { messages, ...head } of conversations) {
      heads.put(head);
      for (const message of messages.values()) rows.put({ ...message, conversation: head.id });
    }
  });
}

/** Sets fields of a conversation, and adds a message or replaces it; one that is deleted stays so. */
export async function change(id, fields, message) {
  await transact("readwrite", (heads, rows) => {
    heads.get(id).onsuccess = ({ target: { result: found } }) => {
      if (!found) return;
      heads.put({ ...found, ...fields, selected: { ...found.selected, ...fields.selected } });
      if (message) rows.put({ ...message, conversation: id });
    };
  });
}

export async function remove(id) {
  await transact("readwrite", (heads, rows) => {
    heads.delete(id);
    rows.delete(rowsOf(id));
  });
}

/** Returns the id of the last message with the words, in any case, by conversation. */
export async function search(words, signal) {
  const found = new Map();
  await transact("readonly", (_, rows) => {
    rows.openCursor().onsuccess = ({ target: { result: row } }) => {
      if (!row || signal.aborted) return;
      const { conversation, id, text } = row.value;
      if (text.toLowerCase().includes(words.toLowerCase())) found.set(conversation, id);
      row.continue();
    };
  });
  return found;
}

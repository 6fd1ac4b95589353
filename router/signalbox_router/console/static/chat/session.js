/** What the chat of this page has open: conversations, answers being written, served models. */

import * as tree from "./conversations.js";
import { Generation } from "./generation.js";
import * as store from "./store.js";
import { UNREACHABLE, onConnection } from "../lib/connection.js";
import { useEffect, useReducer } from "../lib/html.js";
import { INFERENCE, call, retrying } from "../lib/rpc.js";

const byTime = (a, b) => b.updatedAt - a.updatedAt;

class Session {
  /** Stored conversations without their messages, the latest first. */
  conversations = [];
  current = tree.newConversation();
  /** Id of the message to be seen first; null for the last one. */
  sought = null;
  /** Generations by the id of their message. */
  running = new Map();
  /** Served models that generate; null until the server has named them. */
  models = null;
  /** Why the server, which answers, names no models; "" if it does. */
  trouble = "";
  /** `{text, undo}` for the user to read. */
  notice = null;
  /** What is typed and not sent, by conversation. */
  drafts = new Map();
  #listeners = new Set();
  #isUnreachable = false;
  #asking = null;

  constructor() {
    store.onOtherTab(() => document.hidden || this.#refresh());
    onConnection((state) => {
      this.#isUnreachable = state === UNREACHABLE;
      if (this.#isUnreachable) this.loadModels();
    });
    document.addEventListener("visibilitychange", () => {
      this.loadModels();
      if (!document.hidden) this.#refresh();
    });
    this.#refresh().then(() => this.#openLatest());
  }

  onChange(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #changed(fields) {
    Object.assign(this, fields);
    for (const listener of this.#listeners) listener();
  }

  /** Runs `work`; says in words why it fails. */
  async #guard(work) {
    try {
      return await work();
    } catch (error) {
      return this.#changed({ notice: { text: error.message } });
    }
  }

  /** Takes what other tabs have added; one that has deleted the conversation leaves it open here. */
  #refresh() {
    return this.#guard(async () => {
      const conversations = (await store.list()).sort(byTime);
      const found = await store.load(this.current.id);
      const { current } = this;
      if (found?.id !== current.id) return this.#changed({ conversations });
      const messages = new Map([...current.messages, ...found.messages]);
      const selected = { ...found.selected, ...current.selected };
      return this.#changed({ conversations, current: { ...found, messages, selected } });
    });
  }

  /** Asks for the models until the server answers; rests while the page is hidden. */
  async loadModels() {
    this.#asking?.abort();
    if (document.hidden) return;
    const { signal } = (this.#asking = new AbortController());
    const ask = () => call(INFERENCE, "ListModels", {}, { signal });
    // The shell says that the server does not answer.
    const onPause = ({ message }) => this.#changed({ trouble: this.#isUnreachable ? "" : message });
    try {
      const { models = [] } = await retrying(signal, ask, onPause);
      const trouble = models.length ? "" : "The server has no model that this key may use.";
      this.#changed({ models: models.filter(({ pooling }) => !pooling), trouble });
    } catch (error) {
      if (!signal.aborted) onPause(error);
    }
  }

  /** The served model of the conversation; undefined if there is none of this name. */
  get model() {
    const { model } = this.current;
    const isNamed = ({ name, aliases = [], adapters = [] }) =>
      [name, ...aliases, ...adapters].includes(model);
    return model ? this.models?.find(isNamed) : this.models?.[0];
  }

  /** The messages that are shown. */
  get path() {
    return tree.pathOf(this.current);
  }

  /** The answer that is being written at the end of the path; undefined if none is. */
  get generation() {
    return this.running.get(this.path.at(-1)?.id);
  }

  startNew() {
    const { model } = this.current;
    this.#changed({ current: tree.newConversation({ model }), sought: null });
  }

  /** Opens a conversation, at one of its messages if that is given. */
  async open(id, sought = null) {
    const found = await this.#guard(() => store.load(id));
    if (found) this.#changed({ current: sought ? tree.choose(found, sought) : found, sought });
  }

  #openLatest() {
    const isTyping = this.drafts.get(this.current.id)?.text || this.path.length;
    if (this.conversations.length && !isTyping) this.open(this.conversations[0].id);
  }

  /** Sets fields of the conversation: title, model, system, params or selected. */
  set(fields) {
    const { id } = this.current;
    const change = (one) => (one.id === id ? { ...one, ...fields } : one);
    const conversations = this.conversations.map(change);
    this.#changed({ conversations, current: change(this.current) });
    this.#guard(() => store.change(id, fields));
  }

  choose(id) {
    this.set({ selected: tree.choose(this.current, id).selected });
  }

  /** Adds a message to the conversation, and stores both. */
  #add(message) {
    const current = tree.withMessage(this.current, message);
    const { id, title, updatedAt, selected } = current;
    const others = this.conversations.filter((one) => one.id !== id);
    const isStored = others.length < this.conversations.length;
    this.#changed({ current, conversations: [tree.headOf(current), ...others] });
    const fields = { title, updatedAt, selected };
    this.#guard(() => (isStored ? store.change(id, fields, [message]) : store.add([current])));
  }

  /** Adds a message of the user or a tool at the end, or the branch of another. */
  #say(fields) {
    const message = tree.newMessage({ parent: this.path.at(-1)?.id, ...fields });
    this.#add(message);
    if (message.role !== "assistant" && !tree.openCalls(this.path).length) {
      this.#generate(message.id);
    }
  }

  say(text) {
    this.#say({ role: "user", text });
  }

  /** Adds a branch with another text; what answers it follows, unless it is an answer. */
  edit({ parent, role, toolCallId, model }, text) {
    this.#say({ parent, role, toolCallId, model, text });
  }

  /** Adds the result of a call; the model answers once all calls have theirs. */
  addResult(toolCallId, text) {
    this.#say({ role: "tool", toolCallId, text });
  }

  /** Asks for another answer; for one that failed before it began, in its place. */
  regenerate({ id, parent, error, text, reasoning }) {
    this.#generate(parent, error && !text && !reasoning ? { id } : {});
  }

  #generate(parent, fields) {
    const { id, params } = this.current;
    const model = this.current.model || this.model?.name || "";
    const message = tree.newMessage({ parent, role: "assistant", model, params, ...fields });
    this.#add(message);
    const request = tree.requestFor({ ...this.current, model }, this.path.slice(0, -1));
    const generation = new Generation(message, id);
    this.running.set(message.id, generation);
    this.#changed();
    this.#finish(generation, request);
  }

  async #finish(generation, request) {
    const id = generation.conversation;
    const save = (message) => this.#guard(() => store.change(id, {}, [message]));
    const whole = await generation.run(request, save);
    // Asked before the server had named its models, it was answered by the first of them.
    const message = { ...whole, model: whole.model || (this.models?.[0]?.name ?? "") };
    await save(message);
    this.running.delete(message.id);
    const { current } = this;
    this.#changed(id === current.id && { current: tree.withMessage(current, message) });
  }

  /** Deletes the conversation; undoing brings it back as long as the notice is there. */
  remove() {
    const { id, title } = this.current;
    for (const one of this.running.values()) if (one.conversation === id) one.stop();
    this.#guard(async () => {
      const removed = await store.load(id);
      await store.remove(id);
      const undo = () => this.#guard(() => this.#addAll([removed]));
      const conversations = this.conversations.filter((one) => one.id !== id);
      this.#changed({ conversations, notice: { text: `Deleted: ${title}`, undo } });
      this.startNew();
    });
  }

  dismiss() {
    this.#changed({ notice: null });
  }

  async #addAll(added, notice = null) {
    await store.add(added);
    const conversations = [...this.conversations, ...added.map(tree.headOf)].sort(byTime);
    this.#changed({ conversations, notice });
    await this.open(added[0].id);
  }

  /** Adds the conversations of a file that was exported. */
  importFile(file) {
    return this.#guard(async () => {
      const found = tree.fromFile(await file.text());
      await this.#addAll(found, { text: `Imported conversations: ${found.length}` });
    });
  }

  /** Returns the text of a file of these conversations; undefined if they cannot be read. */
  exportFile(ids) {
    return this.#guard(async () =>
      tree.toFile((await Promise.all(ids.map(store.load))).filter(Boolean)),
    );
  }

  /** Returns `{message, text}` by conversation, for each that has a message with these words. */
  search(query, signal) {
    return this.#guard(() => store.search(query, signal));
  }
}

let session = null;

/** Returns the session of this page, and renders the caller again when it changes. */
export function useSession() {
  const [, update] = useReducer((count) => count + 1, 0);
  session ??= new Session();
  useEffect(() => {
    session.loadModels(); // with the key of now
    return session.onChange(update);
  }, []);
  return session;
}

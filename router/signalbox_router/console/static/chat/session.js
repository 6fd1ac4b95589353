/** What the chat of this page has open: conversations, answers being written, served models. */

import * as tree from "./conversations.js";
import { generate } from "./generation.js";
import * as store from "./store.js";
import { onLost } from "../lib/connection.js";
import { saveJson } from "../lib/format.js";
import { useCounter } from "../lib/hooks.js";
import { useEffect } from "../lib/html.js";
import { INFERENCE, call, retrying } from "../lib/rpc.js";

class Session {
  /** Stored conversations without their messages, the latest first. */
  conversations = [];
  current = tree.newConversation();
  /** Id of the message to be seen first; null for the last one. */
  sought = null;
  /**
   * Answers that are being written, by the id of their message: `{message, conversation, onChange, abort}`.
   * `onChange` is called when the message has grown, at most once a frame.
   */
  running = new Map();
  /** Served models that generate; null until the server has named them. */
  models = null;
  /** Why the server names no models; "" if it does. */
  trouble = "";
  /** For the user to read. */
  notice = "";
  /** What is typed and not sent. */
  draft = { text: "", files: [] };
  #listeners = new Set();
  #asking = null;

  constructor() {
    document.addEventListener("visibilitychange", () => {
      this.loadModels();
      if (!document.hidden) this.#reload();
    });
    onLost(() => this.loadModels());
    this.#reload().then(() => {
      const isTyping = this.draft.text || this.path.length;
      if (this.conversations.length && !isTyping) this.open(this.conversations[0].id);
    });
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
  async guard(work) {
    try {
      return await work();
    } catch (error) {
      return this.#changed({ notice: error.message });
    }
  }

  /** Shows what other tabs have stored. A conversation that one has deleted stays open here. */
  #reload() {
    return this.guard(async () => {
      const { current } = this;
      const conversations = await store.list();
      const found = await store.load(current.id);
      if (this.current !== current) return this.#reload(); // changed here meanwhile
      return this.#changed({ conversations, current: found ?? current });
    });
  }

  /** Asks for the models until the server answers; rests while the page is hidden. */
  async loadModels() {
    this.#asking?.abort();
    if (document.hidden) return;
    const { signal } = (this.#asking = new AbortController());
    const ask = () => call(INFERENCE, "ListModels", {}, { signal });
    const tell = ({ message }) => this.#changed({ trouble: message });
    try {
      const { models = [] } = await retrying(signal, ask, tell);
      const trouble = models.length ? "" : "The server has no model that this key may use.";
      this.#changed({ models: models.filter(({ pooling }) => !pooling), trouble });
    } catch (error) {
      if (!signal.aborted) tell(error);
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
    const found = await this.guard(() => store.load(id));
    if (found) this.#changed({ current: sought ? tree.choose(found, sought) : found, sought });
  }

  /** Shows the conversation as it is now, and stores the fields that are others, and a message. */
  #change(current, fields, message) {
    const others = this.conversations.filter(({ id }) => id !== current.id);
    const isStored = others.length < this.conversations.length;
    const conversations = isStored || message ? [current, ...others].sort(store.byTime) : others;
    this.#changed({ current, conversations });
    if (isStored) this.guard(() => store.change(current.id, fields, message));
    else if (message) this.guard(() => store.add([current]));
  }

  /** Sets fields of the conversation: title, model, system, params or selected. */
  set(fields) {
    this.#change({ ...this.current, ...fields }, fields);
  }

  choose(id) {
    this.set({ selected: tree.choose(this.current, id).selected });
  }

  #add(message) {
    const current = tree.withMessage(this.current, message);
    const { title, updatedAt, selected } = current;
    this.#change(current, { title, updatedAt, selected }, message);
  }

  /**
   * Adds a message at the end, or behind `parent`: then it is a branch. What is not the model's is
   * answered, once all its calls of tools have their results.
   */
  say(fields) {
    const message = tree.newMessage({ parent: this.path.at(-1)?.id, ...fields });
    this.#add(message);
    if (message.role !== "assistant" && !tree.openCalls(this.path).length) {
      this.#generate(message.id);
    }
  }

  /** Asks for another answer; for one that failed before it began, in its place. */
  regenerate({ id, parent, error, text, reasoning }) {
    this.#generate(parent, error && !text && !reasoning ? { id } : {});
  }

  async #generate(parent, fields) {
    const { id, params } = this.current;
    const model = this.current.model || this.model?.name || "";
    const empty = tree.newMessage({ parent, role: "assistant", model, params, ...fields });
    const controller = new AbortController();
    const abort = () => controller.abort();
    const answer = { message: empty, conversation: id, onChange() {}, abort };
    this.running.set(empty.id, answer);
    this.#add(empty);
    const request = tree.requestFor({ ...this.current, model }, this.path.slice(0, -1));
    const save = (message) => this.guard(() => store.change(id, {}, message));
    let frame = 0;
    const show = () => {
      frame = 0;
      answer.onChange(answer.message);
    };
    const tell = (message) => {
      answer.message = message;
      frame ||= requestAnimationFrame(show);
    };
    const whole = await generate(empty, request, { signal: controller.signal, tell, save });
    // Asked before the server had named its models, it was answered by the first of them.
    const message = { ...whole, model: whole.model || (this.models?.[0]?.name ?? "") };
    await save(message);
    this.running.delete(message.id);
    const { current } = this;
    this.#changed(id === current.id && { current: tree.withMessage(current, message) });
  }

  /** Deletes the conversation. */
  remove() {
    const { id } = this.current;
    for (const one of this.running.values()) if (one.conversation === id) one.abort();
    this.startNew();
    return this.guard(async () => {
      await store.remove(id);
      this.#changed({ conversations: await store.list() });
    });
  }

  dismiss() {
    this.#changed({ notice: "" });
  }

  /** Adds the conversations of a file that was exported. */
  importFile(file) {
    return this.guard(async () => {
      const found = tree.fromFile(await file.text());
      await store.add(found);
      const notice = `Imported conversations: ${found.length}`;
      this.#changed({ conversations: await store.list(), notice });
      await this.open(found[0].id);
    });
  }

  /** Has the browser save conversations as a file. */
  exportFile(ids, name) {
    return this.guard(async () => {
      const found = (await Promise.all(ids.map(store.load))).filter(Boolean);
      saveJson(`${name}.json`, tree.toFile(found));
    });
  }
}

let session = null;

/** Returns the session of this page, and renders the caller again when it changes. */
export function useSession() {
  const [, update] = useCounter();
  session ??= new Session();
  useEffect(() => {
    session.loadModels(); // with the key of now
    return session.onChange(update);
  }, []);
  return session;
}

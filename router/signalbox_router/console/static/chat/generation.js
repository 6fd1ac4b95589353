/** Streams an answer: what the RPC adds to a message, how fast, and how it ended. */

import { INFERENCE, stream } from "../lib/rpc.js";

const SAVE_EVERY_MS = 2000;
const UNFINISHED = "This answer is not whole: another tab still writes it, or its page was closed.";

/** Returns the message with what a ChatResponse adds, `ms` after the call. */
export function added(message, { requestId, outputs = [], usage }, ms) {
  const delta = outputs.find(({ index = 0 }) => index === 0) ?? {};
  const { text = "", reasoning = "", toolCalls = [], logprobs = [], tokenIds = [] } = delta;
  const numTokens = (message.usage?.completionTokens ?? 0) + tokenIds.length;
  const next = {
    ...message,
    requestId: requestId ?? message.requestId,
    text: message.text + text,
    reasoning: message.reasoning + reasoning,
    toolCalls: toolCalls.reduce(withCall, message.toolCalls),
    logprobs: logprobs.length ? message.logprobs.concat(logprobs) : message.logprobs,
    usage: usage ?? { ...message.usage, completionTokens: numTokens },
  };
  if (tokenIds.length) next.timing = timed(message.timing, numTokens, ms);
  if (delta.finish) next.finish = delta.finish;
  if (delta.finish?.reason === "FINISH_REASON_ERROR") next.error = delta.finish.errorMessage;
  return next;
}

/** Deltas of a call are to be appended; its first has the name. */
function withCall(calls, { index = 0, id = "", name = "", arguments: more = "" }) {
  const call = calls[index] ?? { id, name, arguments: "" };
  return Object.assign([...calls], { [index]: { ...call, arguments: call.arguments + more } });
}

function timed({ firstTokenMs } = {}, numTokens, ms) {
  if (firstTokenMs === undefined) return { firstTokenMs: ms };
  return { firstTokenMs, tokensPerS: ((numTokens - 1) * 1000) / (ms - firstTokenMs) };
}

function failure({ message: error, details = [] }) {
  const violations = details.flatMap(({ fieldViolations = [] }) => fieldViolations);
  return { error, violations };
}

/** An answer that is being written. */
export class Generation {
  #controller = new AbortController();
  #listeners = new Set();
  #isShowing = false;
  #shown = null;

  /** Writes an answer into a message of the conversation with this id. */
  constructor(message, conversation) {
    this.message = message;
    this.conversation = conversation;
  }

  /** Calls `listener` with the message as it grows, at most once a frame; returns what ends this. */
  onChange(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  stop() {
    this.#controller.abort();
  }

  /** Returns the message as it is in the end; `save` is given the unfinished one every now and then. */
  async run(request, save) {
    const { signal } = this.#controller;
    const start = performance.now();
    let saved = start;
    try {
      for await (const response of stream(INFERENCE, "Chat", request, { signal })) {
        const now = performance.now();
        this.message = added(this.message, response, now - start);
        this.#show();
        if (now - saved < SAVE_EVERY_MS) continue;
        saved = now;
        save({ ...this.message, error: UNFINISHED });
      }
    } catch (error) {
      const end = signal.aborted ? { finish: { reason: "STOPPED" } } : failure(error);
      this.message = { ...this.message, ...end };
    }
    return this.message;
  }

  #show() {
    if (this.#isShowing || this.#shown === this.message) return;
    this.#isShowing = true;
    requestAnimationFrame((begin) => {
      this.#shown = this.message;
      for (const listener of this.#listeners) listener(this.message);
      // A long answer takes long to lay out; input gets at least as much time.
      setTimeout(() => {
        setTimeout(() => {
          this.#isShowing = false;
          this.#show();
        }, performance.now() - begin);
      });
    });
  }
}

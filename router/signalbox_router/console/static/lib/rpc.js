/** Calls of the router's services by Connect, in JSON (connectrpc.com/docs/protocol). */

import { setThere } from "./connection.js";
import { askForKeyOnce, getKey } from "./key.js";

export const INFERENCE = "signalbox.inference.v1.InferenceService";
export const OPERATIONS = "signalbox.operations.v1.OperationsService";

const HEAD_BYTES = 5;
const END_OF_STREAM = 2;
const NEEDS_KEY = new Set(["unauthenticated", "permission_denied"]);
const TEMPORARY = new Set(["unavailable", "resource_exhausted", "deadline_exceeded", "aborted"]);
const FIRST_PAUSE_S = 0.5;
const LONGEST_PAUSE_S = 15;
const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** A call that failed. `code` is Connect's, such as "invalid_argument". */
export class RpcError extends Error {
  constructor(code, message, { details = [], retryAfterS = null } = {}) {
    super(message);
    this.name = "RpcError";
    this.code = code;
    /** Messages of google.rpc as JSON, each with its `type`. */
    this.details = details;
    this.retryAfterS = retryAfterS;
  }

  get isCanceled() {
    return this.code === "canceled";
  }

  /** True if the same call may succeed later. */
  get isTemporary() {
    return TEMPORARY.has(this.code);
  }
}

/** Returns the answer of a call with one answer. */
export async function call(service, method, message = {}, { signal } = {}) {
  return withKey(async () => {
    const body = JSON.stringify(message);
    const response = await post(service, method, body, "application/json", signal);
    return reached(response.json());
  });
}

/** Yields the answers of a call with a stream of them. Leaving the loop ends the call. */
export async function* stream(service, method, message = {}, { signal } = {}) {
  const body = enclosed(encoder.encode(JSON.stringify(message)));
  const [messages, first] = await withKey(async () => {
    const response = await post(service, method, body, "application/connect+json", signal);
    const messages = messagesOf(response.body);
    return [messages, await messages.next()];
  });
  try {
    for (let step = first; !step.done; step = await messages.next()) yield step.value;
  } finally {
    await messages.return();
  }
}

/**
 * Calls `run` until it returns, with growing pauses behind errors that may pass; it throws others.
 * `run` gets a function to call on success, behind which the pauses are short again.
 */
export async function retrying(signal, run, onPause = () => {}) {
  let failures = 0;
  for (;;) {
    if (signal?.aborted) throw canceled();
    try {
      return await run(() => (failures = 0));
    } catch (error) {
      if (!error.isTemporary) throw error;
      const longest = Math.min(FIRST_PAUSE_S * 2 ** failures++, LONGEST_PAUSE_S);
      const pauseS = Math.max(error.retryAfterS ?? 0, longest * (0.5 + Math.random() / 2));
      onPause(error, pauseS);
      await pause(pauseS, signal);
    }
  }
}

/** Waits; an abort ends it at once. */
function pause(seconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    const onAbort = () => resolve(clearTimeout(timer));
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** Runs a call; while it needs another key, and the user gives one, runs it again. */
async function withKey(run) {
  for (;;) {
    const key = getKey();
    try {
      return await run();
    } catch (error) {
      const isRefused = NEEDS_KEY.has(error.code);
      if (!isRefused || (getKey() === key && !(await askForKeyOnce(error.message)))) throw error;
    }
  }
}

async function post(service, method, body, type, signal) {
  const headers = { "content-type": type, "connect-protocol-version": "1" };
  const key = getKey();
  if (key) headers.authorization = `Bearer ${key}`;
  const url = new URL(`${service}/${method}`, document.baseURI);
  const response = await reached(fetch(url, { method: "POST", body, headers, signal }));
  if (!response.ok) throw await errorOf(response);
  setThere(true);
  return response;
}

/** Waits for a step of a call; what a browser throws becomes an RpcError. */
async function reached(step) {
  try {
    return await step;
  } catch (error) {
    throw error.name === "AbortError" ? canceled() : unreachable("The server does not answer.");
  }
}

function unreachable(message, more) {
  setThere(false);
  return new RpcError("unavailable", message, more);
}

function canceled() {
  return new RpcError("canceled", "The call was ended.");
}

/** Returns the error of an answer whose status is not 200; a proxy's has no JSON. */
async function errorOf(response) {
  const retryAfterS = Number(response.headers.get("retry-after")) || null;
  const body = await response.json().catch(() => null);
  if (body?.code) {
    setThere(true);
    return errorFrom(body, retryAfterS);
  }
  const text = `The server, or a proxy before it, answered with HTTP status ${response.status}.`;
  return response.status < 500 ? new RpcError("unknown", text) : unreachable(text, { retryAfterS });
}

function errorFrom({ code, message, details = [] }, retryAfterS = null) {
  const shown = details.map(({ type, debug }) => ({ type, ...debug }));
  const delay = shown.find(({ type }) => type === "google.rpc.RetryInfo")?.retryDelay;
  return new RpcError(code, message, {
    details: shown,
    retryAfterS: delay ? parseFloat(delay) : retryAfterS,
  });
}

function enclosed(data) {
  const envelope = new Uint8Array(HEAD_BYTES + data.length);
  new DataView(envelope.buffer).setUint32(1, data.length);
  envelope.set(data, HEAD_BYTES);
  return envelope;
}

/** Yields the messages of a body until its end of stream. */
async function* messagesOf(body) {
  const reader = body.getReader();
  let bytes = new Uint8Array();
  try {
    for (;;) {
      const { value, done } = await reached(reader.read());
      if (done) throw unreachable("The answer broke off.");
      bytes = joined(bytes, value);
      for (let end; (end = endOfFirst(bytes)) <= bytes.length; bytes = bytes.subarray(end)) {
        const message = JSON.parse(decoder.decode(bytes.subarray(HEAD_BYTES, end)));
        if (!(bytes[0] & END_OF_STREAM)) yield message;
        else if (message.error) throw errorFrom(message.error);
        else return;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // ends a call that is left early
  }
}

/** Returns where the first message ends, which may have come in part; Infinity if that is not known. */
function endOfFirst(bytes) {
  if (bytes.length < HEAD_BYTES) return Infinity;
  return HEAD_BYTES + new DataView(bytes.buffer, bytes.byteOffset).getUint32(1);
}

function joined(first, second) {
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

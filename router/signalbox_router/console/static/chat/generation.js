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

/**
 * Streams the answer to a request into a message; returns the message as it is in the end.
 *
 * @param tell called with the message as it grows; `save` with what is to be kept of an unfinished one.
 */
export async function generate(message, request, { signal, tell, save }) {
  const start = performance.now();
  let saved = start;
  try {
    for await (const response of stream(INFERENCE, "Chat", request, { signal })) {
      const now = performance.now();
      message = added(message, response, now - start);
      tell(message);
      if (now - saved < SAVE_EVERY_MS) continue;
      saved = now;
      save({ ...message, error: UNFINISHED });
    }
    return message;
  } catch (error) {
    if (signal.aborted) return { ...message, finish: { reason: "STOPPED" } };
    const violations = error.details?.flatMap(({ fieldViolations = [] }) => fieldViolations);
    return { ...message, error: error.message, violations };
  }
}

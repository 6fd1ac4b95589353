import assert from "node:assert/strict";
import { test } from "node:test";

const { added } = await import(`${process.env.CHAT}/generation.js`);
const { newMessage } = await import(`${process.env.CHAT}/conversations.js`);

/** Returns the message after responses that come at these milliseconds. */
function receive(...responses) {
  const empty = newMessage({ parent: "q", role: "assistant" });
  return responses.reduce((message, [ms, response]) => added(message, response, ms), empty);
}

const delta = (fields) => ({ outputs: [fields] });

test("pieces of text and reasoning are joined", () => {
  const message = receive(
    [10, delta({ reasoning: "Hm" })],
    [20, delta({ reasoning: "m.", text: "Y" })],
    [30, delta({ text: "es" })],
  );
  assert.deepEqual([message.reasoning, message.text], ["Hmm.", "Yes"]);
});

test("only the first sequence is the answer", () => {
  const message = receive([10, { outputs: [{ index: 1, text: "no" }, { text: "yes" }] }]);
  assert.equal(message.text, "yes");
});

test("calls are joined by their index", () => {
  const message = receive(
    [10, delta({ toolCalls: [{ id: "a", name: "look", arguments: '{"x"' }] })],
    [20, delta({ toolCalls: [{ arguments: ": 1}" }, { index: 1, id: "b", name: "go" }] })],
    [30, delta({ toolCalls: [{ index: 1, arguments: "{}" }] })],
  );
  assert.deepEqual(message.toolCalls, [
    { id: "a", name: "look", arguments: '{"x": 1}' },
    { id: "b", name: "go", arguments: "{}" },
  ]);
});

test("the rate is that of the tokens after the first, and what comes without tokens counts not", () => {
  const message = receive(
    [100, delta({})],
    [200, delta({ tokenIds: [1] })],
    [700, delta({ tokenIds: [2, 3] })],
    [1200, delta({ tokenIds: [4, 5] })],
    [9000, { usage: { promptTokens: 7, completionTokens: 5 } }],
  );
  assert.deepEqual(message.timing, { firstTokenMs: 200, tokensPerS: 4 });
  assert.deepEqual(message.usage, { promptTokens: 7, completionTokens: 5 });
});

test("an answer that breaks off has counted its tokens", () => {
  const message = receive([1, delta({ tokenIds: [1, 2] })], [2, delta({ tokenIds: [3] })]);
  assert.equal(message.usage.completionTokens, 3);
});

test("log probabilities follow each other", () => {
  const [one, two] = [{ sampled: { text: "a" } }, { sampled: { text: "b" } }];
  const message = receive([1, delta({ logprobs: [one] })], [2, delta({ logprobs: [two] })]);
  assert.deepEqual(message.logprobs, [one, two]);
});

test("a sequence that fails keeps its text and has the error", () => {
  const finish = { reason: "FINISH_REASON_ERROR", errorMessage: "no token is allowed" };
  const message = receive([1, delta({ text: "so" })], [2, delta({ finish })]);
  assert.deepEqual([message.text, message.error], ["so", "no token is allowed"]);
  assert.deepEqual(message.finish, finish);
});

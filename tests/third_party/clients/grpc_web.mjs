// In Chromium, by base64 and binary bodies: text, usage, a cancelled stream, a deadline, INVALID_ARGUMENT

import assert from "node:assert/strict";
import { inBrowser } from "./browser.mjs";
import { ANSWER, COMPLETION_TOKENS, PROMPT_TOKENS, REFUSAL, SERVED } from "./demo.mjs";

const [INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND] = [3, 4, 5];
const { text, binary } = await inBrowser("grpc_web.js");
for (const { model, unknown } of [text, binary]) {
  assert.deepEqual([model, unknown[0]], [SERVED, NOT_FOUND]);
  assert.ok(unknown[1].includes("not served"), unknown[1]);
}
assert.deepEqual([text.text, text.isStopped], [ANSWER, true]);
assert.deepEqual(text.tokens, [PROMPT_TOKENS, COMPLETION_TOKENS]);
assert.equal(text.refused[0], INVALID_ARGUMENT);
assert.ok(text.refused[1].includes(REFUSAL), text.refused[1]);
assert.deepEqual(text.late, [DEADLINE_EXCEEDED]);
assert.deepEqual([text.isCancelled, text.numLive], [true, 0]);

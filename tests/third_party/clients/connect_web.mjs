// In Chromium, by Connect (JSON, binary) and gRPC-Web: text, usage, an abort, a deadline, errors and their details

import assert from "node:assert/strict";
import { inBrowser } from "./browser.mjs";
import { ANSWER, COMPLETION_TOKENS, PROMPT_TOKENS, REFUSAL, SERVED } from "./demo.mjs";

const found = await inBrowser("connect_web.js");
assert.deepEqual(Object.keys(found), ["connect+json", "connect+proto", "grpc-web+proto"]);
for (const [name, calls] of Object.entries(found)) {
  const { text, isStopped, tokens, model, aborted, numLive } = calls;
  assert.deepEqual([text, isStopped, model], [ANSWER, true, SERVED], name);
  assert.deepEqual(tokens, [PROMPT_TOKENS, COMPLETION_TOKENS], name);
  const [code, message, details] = calls.refused;
  assert.deepEqual([code, details], ["InvalidArgument", "google.rpc.BadRequest"], name);
  assert.ok(message.includes(REFUSAL), message);
  assert.equal(calls.unknown[0], "NotFound", name);
  assert.equal(calls.late[0], "DeadlineExceeded", name);
  assert.deepEqual([aborted, numLive], [[true, "Canceled"], 0], name);
}

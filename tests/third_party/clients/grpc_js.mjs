// Text, usage, finish reason, order of the stream, a cancelled call, INVALID_ARGUMENT

import assert from "node:assert/strict";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import {
  ANSWER, BAD_TEMPERATURE, COMPLETION_TOKENS, GRPC, PROMPT_TOKENS, QUESTION, REFUSAL, ROOT,
} from "./demo.mjs";

const options = { includeDirs: [`${ROOT}/protos`], keepCase: true, enums: String, defaults: false };
const definitions = loadSync("signalbox_protos/inference/v1/inference.proto", options);
const { InferenceService } = grpc.loadPackageDefinition(definitions).signalbox.inference.v1;
const client = new InferenceService(GRPC, grpc.credentials.createInsecure());

function chat(sampling) {
  const messages = [{ role: "CHAT_ROLE_USER", content: [{ text: QUESTION }] }];
  return client.Chat({ messages, sampling_params: sampling });
}

const answers = [];
for await (const answer of chat({ temperature: 0, max_tokens: 24 })) answers.push(answer);
const deltas = answers.flatMap((answer) => answer.outputs ?? []);
assert.equal(deltas.map((delta) => delta.text ?? "").join(""), ANSWER);
assert.deepEqual(
  deltas.map((delta) => delta.finish?.reason),
  [...Array(deltas.length - 1).fill(undefined), "FINISH_REASON_STOP"],
);
const { usage } = answers.at(-1);
assert.deepEqual(
  [usage.prompt_tokens, usage.completion_tokens], [PROMPT_TOKENS, COMPLETION_TOKENS],
);

const endless = chat({ ignore_eos: true });
await assert.rejects(async () => {
  for await (const _ of endless) endless.cancel();
}, { code: grpc.status.CANCELLED });

await assert.rejects(async () => {
  for await (const _ of chat({ temperature: BAD_TEMPERATURE }));
}, (error) => error.code === grpc.status.INVALID_ARGUMENT && error.details.includes(REFUSAL));

client.close();

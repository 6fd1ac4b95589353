// By a released descriptor: text, usage, finish reason, order of the stream, a typed error

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import path from "node:path";
import { createFileRegistry, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import {
  ANSWER, BAD_TEMPERATURE, COMPLETION_TOKENS, GRPC, PROMPT_TOKENS, QUESTION, REFUSAL, ROOT,
} from "./demo.mjs";

const folder = path.join(ROOT, "tests/protos/released");
const newest = readdirSync(folder).filter((name) => name.endsWith(".binpb")).sort().at(-1);
const files = fromBinary(FileDescriptorSetSchema, readFileSync(path.join(folder, newest)));
const service = createFileRegistry(files).getService("signalbox.inference.v1.InferenceService");
const client = createClient(service, createGrpcTransport({ baseUrl: `http://${GRPC}` }));
const [USER, STOP] = ["CHAT_ROLE_USER", "FINISH_REASON_STOP"].map(enumNumber);

/** Returns the number of an enum's value, by the name that the proto gives it. */
function enumNumber(name) {
  for (const file of files.file) {
    for (const declared of file.enumType) {
      const found = declared.value.find((value) => value.name === name);
      if (found && file.package === "signalbox.inference.v1") return found.number;
    }
  }
  throw new Error(`no enum has ${name}`);
}

function chat(samplingParams) {
  const content = [{ part: { case: "text", value: QUESTION } }];
  return client.chat({ messages: [{ role: USER, content }], samplingParams });
}

const answers = [];
for await (const answer of chat({ temperature: 0, maxTokens: 24 })) answers.push(answer);
const deltas = answers.flatMap((answer) => answer.outputs);
assert.equal(deltas.map((delta) => delta.text).join(""), ANSWER);
assert.deepEqual(
  deltas.map((delta) => delta.finish?.reason),
  [...Array(deltas.length - 1).fill(undefined), STOP],
);
const { usage } = answers.at(-1);
assert.deepEqual(
  [usage.promptTokens, usage.completionTokens], [PROMPT_TOKENS, COMPLETION_TOKENS],
);

await assert.rejects(async () => {
  for await (const _ of chat({ temperature: BAD_TEMPERATURE }));
}, (error) => {
  const { code, message } = ConnectError.from(error);
  return code === Code.InvalidArgument && message.includes(REFUSAL);
});

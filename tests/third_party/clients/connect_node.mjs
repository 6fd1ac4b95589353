// By gRPC, Connect (JSON, binary) and gRPC-Web: text, usage, finish reason, order of the stream, a typed error

import assert from "node:assert/strict";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import {
  createConnectTransport, createGrpcTransport, createGrpcWebTransport,
} from "@connectrpc/connect-node";
import {
  ANSWER, BAD_TEMPERATURE, COMPLETION_TOKENS, GRPC, HTTP, PROMPT_TOKENS, QUESTION, REFUSAL,
  releasedDescriptor,
} from "./demo.mjs";
import { chatOf, serviceOf, told } from "./inference.mjs";

const service = serviceOf(releasedDescriptor());
const web = { baseUrl: HTTP.replace(/\/v1$/, ""), httpVersion: "1.1" };

for (const transport of [
  createGrpcTransport({ baseUrl: `http://${GRPC}` }),
  createConnectTransport({ ...web, useBinaryFormat: false }),
  createConnectTransport({ ...web, useBinaryFormat: true }),
  createGrpcWebTransport({ ...web, useBinaryFormat: true }),
  createGrpcWebTransport({ ...web, useBinaryFormat: false }),
]) {
  const client = createClient(service, transport);
  const chat = (params) => client.chat(chatOf(service, QUESTION, params));
  const answers = [];
  for await (const answer of chat({ temperature: 0, maxTokens: 24 })) answers.push(answer);
  assert.deepEqual(told(service, answers), {
    text: ANSWER, isStopped: true, tokens: [PROMPT_TOKENS, COMPLETION_TOKENS],
  });
  assert.equal((await client.getModel({})).maxModelLen > 0, true);
  await assert.rejects(async () => {
    for await (const _ of chat({ temperature: BAD_TEMPERATURE }));
  }, (error) => {
    const { code, message, details } = ConnectError.from(error);
    return code === Code.InvalidArgument && message.includes(REFUSAL)
      && details.length === 1;
  });
}

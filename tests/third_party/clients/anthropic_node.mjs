// Messages: the runner of tools, whole and streamed, which asks for a thread first; thinking, counts, a typed error

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { CALLS_QUESTION, MODEL, SCRIPTED_HTTP, TOLD, TOOL, WEATHER } from "./demo.mjs";

const client = new Anthropic({ baseURL: SCRIPTED_HTTP, apiKey: "none", maxRetries: 0 });
const called = [];
const weather = betaTool({
  name: TOOL,
  description: "Returns the weather of a city.",
  inputSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  run: ({ city }) => (called.push(city), WEATHER[city]),
});
const body = {
  model: MODEL, max_tokens: 1000, messages: [{ role: "user", content: CALLS_QUESTION }],
};

for (const stream of [false, true]) {
  const runner = client.beta.messages.toolRunner({ ...body, tools: [weather], stream });
  const { content } = await runner.runUntilDone();
  assert.deepEqual(content.map((block) => block.text), [TOLD]);
  assert.deepEqual(called.splice(0), Object.keys(WEATHER));
}

const { run, ...offered } = weather;
const first = await client.messages.stream({ ...body, tools: [offered] }).finalMessage();
assert.deepEqual(first.content.map((block) => block.type), ["thinking", "tool_use", "tool_use"]);
assert.equal(first.stop_reason, "tool_use");
const { input_tokens: counted } = await client.messages.countTokens({
  model: MODEL, messages: body.messages, tools: [offered],
});
assert.equal(first.usage.input_tokens + first.usage.cache_read_input_tokens, counted);
await assert.rejects(client.messages.create({ ...body, model: "another" }), Anthropic.NotFoundError);

// Chat, Responses (`store: false`) and Messages: two calls at once and their results, whole and streamed, a form

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import {
  CALLS_QUESTION, FORM, FORM_QUESTION, MODEL, SCRIPTED_HTTP, TOLD, TOOL, WEATHER,
} from "./demo.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const server = { baseURL: `${SCRIPTED_HTTP}/v1`, apiKey: "none" };
const openai = createOpenAI(server);
const models = [
  createOpenAICompatible({ ...server, name: "signalbox", supportsStructuredOutputs: true })(MODEL),
  openai.chat(MODEL),
  openai.responses(MODEL),
  createAnthropic(server)(MODEL),
];
const called = [];
const weather = tool({
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => (called.push(city), WEATHER[city]),
});

for (const model of models) {
  const asked = { model, maxRetries: 0, providerOptions: { openai: { store: false } } };
  const turns = {
    ...asked, prompt: CALLS_QUESTION, tools: { [TOOL]: weather }, stopWhen: stepCountIs(3),
  };
  const whole = await generateText(turns);
  assert.deepEqual([whole.text, whole.steps.length], [TOLD, 2]);
  assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);
  const streamed = streamText({ ...turns, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const part of streamed.textStream) text += part;
  assert.equal(text.trim(), TOLD);
  assert.deepEqual(called.splice(0), Object.keys(WEATHER).concat(Object.keys(WEATHER)));
  const output = Output.object({ schema: z.object({ city: z.string() }) });
  const form = await generateText({ ...asked, prompt: FORM_QUESTION, output });
  assert.deepEqual(form.output, FORM);
}

// Streams a chat, leaves one, lets one run into its deadline, and reads the details of an error.
//
//   node example.mjs [URL]

import { Code, SignalboxClient } from "signalbox-client";

const client = new SignalboxClient(process.argv[2] ?? "http://127.0.0.1:8000");

async function failureOf(pieces) {
  try {
    for await (const _ of pieces);
  } catch (error) {
    return error;
  }
  throw new Error("the call has not failed");
}

process.stdout.write("answer: ");
const question = "What is the capital of South Korea?";
for await (const piece of client.streamChat(question, { temperature: 0, maxTokens: 24 })) {
  process.stdout.write(piece);
}
console.log();

const endless = { ignoreEos: true };
for await (const piece of client.streamChat("Tell me a story.", endless)) {
  console.log(`cancelled after: ${piece}`);
  break;
}

const late = await failureOf(client.streamChat("Tell me a story.", { ...endless, timeoutMs: 500 }));
console.log(`late: ${Code[late.code]}`);

const refused = await failureOf(client.streamChat("Hello", { temperature: 9 }));
for (const { field, description } of refused.violations) {
  console.log(`refused: ${Code[refused.code]} ${field}: ${description}`);
}

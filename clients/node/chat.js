// Streams a chat, cancels one, lets one run into its deadline, and reads the details of an error.
//
//   npm install && node chat.js [HOST:PORT]

const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

const ROOT = path.join(__dirname, "../..");
const definitions = loadSync(
  ["signalbox_protos/inference/v1/inference.proto", "clients/error_details.proto"],
  { includeDirs: [path.join(ROOT, "protos"), ROOT], keepCase: true, enums: String, defaults: true, oneofs: true },
);
const { InferenceService } = grpc.loadPackageDefinition(definitions).signalbox.inference.v1;

const address = process.argv[2] ?? "127.0.0.1:50051";
const client = new InferenceService(address, grpc.credentials.createInsecure());

function chatRequest(text, samplingParams) {
  const messages = [{ role: "CHAT_ROLE_USER", content: [{ text }] }];
  return { messages, sampling_params: samplingParams };
}

/** Yields pieces of text; leaving the loop cancels the call, which aborts the request. */
async function* chat(request, options = {}) {
  const call = client.Chat(request, new grpc.Metadata(), options);
  try {
    for await (const response of call) {
      yield response.outputs.map((output) => output.text).join("");
    }
  } finally {
    call.cancel();
  }
}

/** Returns what google.rpc.BadRequest says of each field. */
function violationsOf(error) {
  const [packed] = error.metadata.get("grpc-status-details-bin");
  if (packed === undefined) return [];
  return decode("google.rpc.Status", packed).details
    .filter((detail) => detail.type_url.endsWith("/google.rpc.BadRequest"))
    .flatMap((detail) => decode("google.rpc.BadRequest", detail.value).field_violations);
}

function decode(name, bytes) {
  return definitions[name].deserialize(bytes);
}

async function failureOf(pieces) {
  try {
    for await (const _ of pieces);
  } catch (error) {
    return error;
  }
  throw new Error("the call has not failed");
}

async function main() {
  process.stdout.write("answer: ");
  const question = chatRequest("What is the capital of South Korea?", { temperature: 0, max_tokens: 24 });
  for await (const piece of chat(question)) process.stdout.write(piece);
  console.log();

  const endless = chatRequest("Tell me a story.", { ignore_eos: true });
  for await (const piece of chat(endless)) {
    console.log(`cancelled after: ${piece}`);
    break;
  }

  const deadline = Date.now() + 500;
  const late = await failureOf(chat(endless, { deadline }));
  console.log(`late: ${grpc.status[late.code]}`);

  const refused = await failureOf(chat(chatRequest("Hello", { temperature: 9 })));
  for (const { field, description } of violationsOf(refused)) {
    console.log(`refused: ${grpc.status[refused.code]} ${field}: ${description}`);
  }
}

main()
  .catch((error) => {
    console.error(error.message);
    process.exitCode = 1;
  })
  .finally(() => client.close());

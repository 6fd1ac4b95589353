/** Calls by each transport of @connectrpc/connect-web, in a page. */

import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { told } from "../inference.mjs";
import { prepared, untilLive } from "./settings.js";

export default async function main(settings) {
  const { baseUrl } = settings;
  const found = {};
  for (const [name, transport] of Object.entries({
    "connect+json": createConnectTransport({ baseUrl, useBinaryFormat: false }),
    "connect+proto": createConnectTransport({ baseUrl, useBinaryFormat: true }),
    "grpc-web+proto": createGrpcWebTransport({ baseUrl }),
  })) {
    found[name] = await calls(transport, baseUrl, prepared(settings));
  }
  return found;
}

async function calls(transport, baseUrl, { service, good, bad, long }) {
  const client = createClient(service, transport);
  const answers = [];
  for await (const answer of client.chat(good)) answers.push(answer);
  return {
    ...told(service, answers),
    model: (await client.getModel({})).name,
    refused: await failure(client.chat(bad)),
    unknown: await failure([await client.tokenize({ model: "none", text: "a" }).catch((error) => error)]),
    late: await failure(client.chat(long, { timeoutMs: 300 })),
    aborted: await aborted(client, long),
    numLive: await untilLive(0, baseUrl),
  };
}

/** Returns how a stream fails, or the error that is in place of one. */
async function failure(stream) {
  try {
    for await (const one of stream) if (one instanceof Error) throw one;
  } catch (reason) {
    const error = ConnectError.from(reason);
    return [Code[error.code], error.rawMessage, error.details.map((detail) => detail.type).join()];
  }
  return [];
}

async function aborted(client, request) {
  const controller = new AbortController();
  let count = 0;
  try {
    for await (const _ of client.chat(request, { signal: controller.signal })) {
      count += 1;
      controller.abort();
    }
  } catch (error) {
    return [count > 0, Code[ConnectError.from(error).code]];
  }
  return [];
}

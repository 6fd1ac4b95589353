/** Calls by grpc-web, in base64 and in its own bytes, in a page. */

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { GrpcWebClientBase, MethodDescriptor } from "grpc-web";
import { told } from "../inference.mjs";
import { prepared, untilLive } from "./settings.js";

export default async function main(settings) {
  const { baseUrl } = settings;
  const { service, good, bad, long } = prepared(settings);
  const found = {};
  for (const format of ["text", "binary"]) {
    const client = new GrpcWebClientBase({ format });
    const method = (name) => methodOf(service, name, baseUrl);
    const stream = (request, metadata = {}) => {
      const chat = method("chat");
      return client.serverStreaming(chat.url, create(chat.input, request), metadata, chat.descriptor);
    };
    const unary = (name, request = {}) => {
      const { url, input, descriptor } = method(name);
      return client.unaryCall(url, create(input, request), {}, descriptor);
    };
    found[format] = {
      model: (await unary("getModel")).name,
      unknown: await unary("tokenize", { model: "none", text: "a" }).catch(({ code, message }) => [code, message]),
    };
    if (format === "binary") continue; // streams of it are not given before their end
    found[format] = {
      ...found[format],
      ...told(service, await all(stream(good))),
      refused: await all(stream(bad)).catch(({ code, message }) => [code, message]),
      late: await all(stream(long, { deadline: String(Date.now() + 300) })).catch(({ code }) => [code]),
      isCancelled: await cancelled(stream(long)),
      numLive: await untilLive(0, baseUrl),
    };
  }
  return found;
}

function methodOf(service, name, baseUrl) {
  const { input, output, methodKind } = service.method[name];
  const path = `/${service.typeName}/${service.method[name].name}`;
  const descriptor = new MethodDescriptor(
    path, methodKind === "unary" ? "unary" : "server_streaming", Object, Object,
    (request) => toBinary(input, request), (bytes) => fromBinary(output, bytes),
  );
  return { url: baseUrl + path, input, descriptor };
}

function all(stream) {
  return new Promise((resolve, reject) => {
    const messages = [];
    stream.on("data", (message) => messages.push(message));
    stream.on("error", reject);
    stream.on("end", () => resolve(messages));
  });
}

/** Returns true once a stream has begun, and was cancelled. */
function cancelled(stream) {
  return new Promise((resolve, reject) => {
    stream.on("error", reject);
    stream.on("data", () => { stream.cancel(); resolve(true); });
  });
}

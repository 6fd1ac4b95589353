/** The service of a descriptor, and a chat of the demo, for clients on @bufbuild/protobuf: in Node and in pages. */

import { createFileRegistry, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";

const PACKAGE = "signalbox.inference.v1";

/** Returns the service, by the bytes of a descriptor set. */
export function serviceOf(bytes) {
  const files = createFileRegistry(fromBinary(FileDescriptorSetSchema, bytes));
  return files.getService(`${PACKAGE}.InferenceService`);
}

/** Returns the number of an enum's value, by the name that the proto gives it. */
export function enumNumber(service, name) {
  for (const declared of service.file.proto.enumType) {
    const found = declared.value.find((value) => value.name === name);
    if (found) return found.number;
  }
  throw new Error(`no enum has ${name}`);
}

/** Returns a request for an answer to the question. */
export function chatOf(service, question, samplingParams) {
  const content = [{ part: { case: "text", value: question } }];
  return { messages: [{ role: enumNumber(service, "CHAT_ROLE_USER"), content }], samplingParams };
}

/** Returns what the messages of a stream say together. */
export function told(service, answers) {
  const deltas = answers.flatMap((answer) => answer.outputs);
  const { usage } = answers.at(-1);
  return {
    text: deltas.map((delta) => delta.text).join(""),
    isStopped: deltas.map((delta) => delta.finish?.reason).join("") ===
      String(enumNumber(service, "FINISH_REASON_STOP")),
    tokens: [usage.promptTokens, usage.completionTokens],
  };
}

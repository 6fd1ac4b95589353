/**
 * A client of Signalbox for browsers and Node: text in, text out, by Connect on the router's HTTP port.
 *
 *     const client = new SignalboxClient("http://127.0.0.1:8000");
 *     for await (const piece of client.streamChat("Tell me a story.", { maxTokens: 100 })) show(piece);
 *
 * `client.rpc` has every call of inference.v1 with its own messages.
 */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import type { CallOptions, Client, Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { requestError } from "./errors.js";
import { ChatRole, FinishReason, InferenceService } from "./gen/signalbox_protos/inference/v1/inference_pb.js";
import type {
  ChatRequestSchema, ChatResponse, GenerateResponse, SamplingParamsSchema, Usage,
} from "./gen/signalbox_protos/inference/v1/inference_pb.js";

export { Code } from "@connectrpc/connect";
export { RequestError } from "./errors.js";
export type { FieldViolation } from "./errors.js";
export * from "./gen/signalbox_protos/inference/v1/inference_pb.js";

/** One turn of a conversation. */
export interface Turn {
  role: "system" | "user" | "assistant";
  content: string;
}

/** Sampling parameters by their names in SamplingParams, the model, and how the call may end early. */
export type Options = Omit<MessageInitShape<typeof SamplingParamsSchema>, "$typeName"> & {
  /** Name of a served model; may be left out if there is only one. */
  model?: string;
  /** Aborts the request on the server, too. */
  signal?: AbortSignal;
  /** Bounds the whole request, its time in the queue included. */
  timeoutMs?: number;
};

/** A whole answer: that of the first sequence. */
export interface Answer {
  text: string;
  finishReason: FinishReason | undefined;
  usage: Usage | undefined;
}

const ROLES = {
  system: ChatRole.SYSTEM, user: ChatRole.USER, assistant: ChatRole.ASSISTANT,
};

/** Calls one router. Failed calls throw RequestError. */
export class SignalboxClient {
  /** Every call of inference.v1; these throw ConnectError. */
  readonly rpc: Client<typeof InferenceService>;

  /** Makes a client of the router whose HTTP port has this URL, without a path. */
  constructor(baseUrl: string, { apiKey }: { apiKey?: string } = {}) {
    const withKey: Interceptor = (next) => (request) => {
      request.header.set("authorization", `Bearer ${apiKey}`);
      return next(request);
    };
    const interceptors = apiKey === undefined ? [] : [withKey];
    const transport = createConnectTransport({ baseUrl, useBinaryFormat: true, interceptors });
    this.rpc = createClient(InferenceService, transport);
  }

  /** Yields the pieces of an answer's text. Leaving the loop aborts the request. */
  async *streamChat(messages: string | readonly Turn[], options: Options = {}): AsyncGenerator<string> {
    const { model, call, samplingParams } = split(options);
    yield* pieces((signal) =>
      this.rpc.chat({ model, samplingParams, messages: turnsOf(messages) }, { ...call, signal }),
      call.signal);
  }

  /** Yields the pieces of a prompt's continuation. Leaving the loop aborts the request. */
  async *streamGenerate(text: string, options: Options = {}): AsyncGenerator<string> {
    const { model, call, samplingParams } = split(options);
    const prompt = { case: "text" as const, value: text };
    yield* pieces((signal) =>
      this.rpc.generate({ model, samplingParams, prompt }, { ...call, signal }), call.signal);
  }

  /** Returns the whole answer to a conversation. */
  async chat(messages: string | readonly Turn[], options: Options = {}): Promise<Answer> {
    const { model, call, samplingParams } = split(options);
    return answerOf(this.rpc.chat({ model, samplingParams, messages: turnsOf(messages) }, call));
  }

  /** Returns the whole continuation of a prompt. */
  async generate(text: string, options: Options = {}): Promise<Answer> {
    const { model, call, samplingParams } = split(options);
    const prompt = { case: "text" as const, value: text };
    return answerOf(this.rpc.generate({ model, samplingParams, prompt }, call));
  }
}

function split({ model, signal, timeoutMs, ...samplingParams }: Options) {
  return { model, samplingParams, call: { signal, timeoutMs } satisfies CallOptions };
}

function turnsOf(messages: string | readonly Turn[]): MessageInitShape<typeof ChatRequestSchema>["messages"] {
  const turns = typeof messages === "string" ? [{ role: "user" as const, content: messages }] : messages;
  return turns.map(({ role, content }) => ({
    role: ROLES[role], content: [{ part: { case: "text" as const, value: content } }],
  }));
}

type Response = ChatResponse | GenerateResponse;

/** Yields the text of the first sequence. The call is aborted when the loop is left. */
async function* pieces(
  start: (signal: AbortSignal) => AsyncIterable<Response>, outer: AbortSignal | undefined,
): AsyncGenerator<string> {
  const leaving = new AbortController();
  const signal = outer ? AbortSignal.any([outer, leaving.signal]) : leaving.signal;
  try {
    for await (const { outputs } of start(signal)) {
      const text = outputs.find(({ index }) => index === 0)?.text;
      if (text) yield text;
    }
  } catch (reason) {
    throw requestError(reason);
  } finally {
    leaving.abort();
  }
}

async function answerOf(responses: AsyncIterable<Response>): Promise<Answer> {
  const answer: Answer = { text: "", finishReason: undefined, usage: undefined };
  try {
    for await (const { outputs, usage } of responses) {
      const first = outputs.find(({ index }) => index === 0);
      answer.text += first?.text ?? "";
      answer.finishReason = first?.finish?.reason ?? answer.finishReason;
      answer.usage = usage ?? answer.usage;
    }
  } catch (reason) {
    throw requestError(reason);
  }
  return answer;
}

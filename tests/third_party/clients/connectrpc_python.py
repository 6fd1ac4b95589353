"""By Connect (JSON, binary) and gRPC-Web: text, usage, finish reason, a deadline, a typed error."""

from pathlib import Path

from connectrpc.client import ConnectClientSync
from connectrpc.code import Code
from connectrpc.compat import google_protobuf_binary_codec, google_protobuf_json_codec
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.protocol import ProtocolType
from demo import ANSWER, BAD_TEMPERATURE, COMPLETION_TOKENS, HTTP, PROMPT_TOKENS, QUESTION, REFUSAL
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "signalbox.inference.v1.InferenceService"
RELEASED = max((Path(__file__).parents[2] / "protos" / "released").glob("*.binpb"))

files = descriptor_pb2.FileDescriptorSet.FromString(RELEASED.read_bytes())
pool = descriptor_pool.DescriptorPool()
for file in files.file:
    pool.Add(file)


def method(name: str) -> MethodInfo:
    found = pool.FindServiceByName(SERVICE).FindMethodByName(name)
    kinds = (found.input_type, found.output_type)
    request, answer = (message_factory.GetMessageClass(kind) for kind in kinds)
    return MethodInfo(
        name=name,
        service_name=SERVICE,
        input=request,
        output=answer,
        idempotency_level=IdempotencyLevel.UNKNOWN,
        stream_type=StreamType.SERVER_STREAM if found.server_streaming else StreamType.UNARY,
    )


def check(client: ConnectClientSync) -> None:
    chat, tokenize = method("Chat"), method("Tokenize")

    def ask(timeout_ms: int | None = None, **params: object) -> list:
        turn = {"role": "CHAT_ROLE_USER", "content": [{"text": QUESTION}]}
        request = chat.input(messages=[turn], sampling_params=params)
        stream = client.execute_server_stream(request=request, method=chat, timeout_ms=timeout_ms)
        return list(stream)

    def code_of(**asked: object) -> tuple[Code, str, list[str]]:
        try:
            ask(**asked)
        except ConnectError as error:
            return error.code, error.message, [detail.type_name for detail in error.details]
        raise AssertionError("no error")

    answers = ask(temperature=0, max_tokens=24)
    outputs = [output for answer in answers for output in answer.outputs]
    assert "".join(output.text for output in outputs) == ANSWER
    reasons = pool.FindEnumTypeByName("signalbox.inference.v1.FinishReason").values_by_name
    assert outputs[-1].finish.reason == reasons["FINISH_REASON_STOP"].number
    usage = answers[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (PROMPT_TOKENS, COMPLETION_TOKENS)
    tokens = client.execute_unary(request=tokenize.input(text=ANSWER), method=tokenize)
    assert len(tokens.token_ids) == COMPLETION_TOKENS - 1
    code, message, details = code_of(temperature=BAD_TEMPERATURE)
    assert (code, details) == (Code.INVALID_ARGUMENT, ["google.rpc.BadRequest"])
    assert REFUSAL in message
    assert code_of(timeout_ms=300, max_tokens=1500, ignore_eos=True)[0] is Code.DEADLINE_EXCEEDED


for protocol, codec in (
    (ProtocolType.CONNECT, google_protobuf_json_codec()),
    (ProtocolType.CONNECT, google_protobuf_binary_codec()),
    (ProtocolType.GRPC_WEB, google_protobuf_binary_codec()),
):
    with ConnectClientSync(HTTP.removesuffix("/v1"), codec=codec, protocol=protocol) as one:
        check(one)

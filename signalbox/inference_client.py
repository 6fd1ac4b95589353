"""A client of the public API, as the command line uses it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc
from rpc.client import open_channel
from signalbox.connection import PLAIN, Connection

HEALTH_POLL_S = 0.1
UNARY_TIMEOUT_S = 10.0

Role = Literal["system", "user", "assistant"]

_ROLES = {
    "system": pb.CHAT_ROLE_SYSTEM,
    "user": pb.CHAT_ROLE_USER,
    "assistant": pb.CHAT_ROLE_ASSISTANT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What was added to one sequence."""

    index: int
    text: str
    num_tokens: int
    finish_reason: str | None
    """Such as "stop" or "length", in the sequence's last delta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that a request took."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is served."""

    name: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    has_chat_template: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy a router and what is behind it are; see inference.proto."""

    num_live_requests: int
    max_live_requests: int
    num_waiting_requests: int
    num_running_requests: int
    num_swapped_requests: int
    num_workers: int
    num_kv_blocks: int
    num_used_kv_blocks: int


class Token(NamedTuple):
    id: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One message of the answer's stream."""

    request_id: str
    deltas: tuple[Delta, ...]
    usage: Usage | None
    """In the last one."""


Plain = TypeVar("Plain", Model, Load)


class InferenceClient:
    """Calls a router. Failed calls raise grpc.aio.AioRpcError."""

    def __init__(self, address: str, connection: Connection = PLAIN) -> None:
        self.address = address
        self._metadata = connection.metadata
        self._channel = open_channel(
            address, tls=connection.tls, server_name=connection.server_name
        )
        make_stub: Any = inference_pb2_grpc.InferenceServiceStub  # generated without types
        self._stub = make_stub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._channel.close()

    async def wait_until_serving(self) -> None:
        """Returns when the router answers and is healthy."""
        while True:
            if await self.is_serving():
                return
            await asyncio.sleep(HEALTH_POLL_S)

    async def is_serving(self) -> bool:
        """Returns whether the router answers and is healthy."""
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(), timeout=2)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def model(self) -> Model:
        return _same_fields(Model, await self._ask(self._stub.GetModel, pb.GetModelRequest()))

    async def load(self) -> Load:
        return _same_fields(Load, await self._ask(self._stub.GetLoad, pb.GetLoadRequest()))

    async def tokenize(self, text: str, *, special_tokens: bool) -> list[Token]:
        request = pb.TokenizeRequest(
            text=text, add_special_tokens=special_tokens, return_texts=True
        )
        answer = await self._ask(self._stub.Tokenize, request)
        return [Token(*pair) for pair in zip(answer.token_ids, answer.texts, strict=True)]

    async def detokenize(self, token_ids: Sequence[int], *, special_tokens: bool) -> str:
        request = pb.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=not special_tokens)
        return str((await self._ask(self._stub.Detokenize, request)).text)

    async def _ask(self, method: Any, request: Any) -> Any:
        return await method(request, timeout=UNARY_TIMEOUT_S, metadata=self._metadata)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: dict[str, Any],
        timeout_s: float | None = None,
    ) -> AsyncIterator[Chunk]:
        """Streams the continuation of a prompt, text or token ids.

        Args:
            sampling: fields of SamplingParams, by name.
        """
        request = pb.GenerateRequest(sampling_params=pb.SamplingParams(**sampling))
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.ids.extend(prompt)
        return _stream(self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata))

    def chat(
        self,
        messages: Sequence[Message],
        *,
        sampling: dict[str, Any],
        timeout_s: float | None = None,
    ) -> AsyncIterator[Chunk]:
        """Streams the answer to a conversation; as `generate` otherwise."""
        turns = [
            pb.ChatMessage(role=_ROLES[turn.role], content=[pb.ContentPart(text=turn.text)])
            for turn in messages
        ]
        request = pb.ChatRequest(messages=turns, sampling_params=pb.SamplingParams(**sampling))
        return _stream(self._stub.Chat(request, timeout=timeout_s, metadata=self._metadata))


def _same_fields(kind: type[Plain], message: Any) -> Plain:
    names = (field.name for field in dataclasses.fields(kind))
    return kind(**{name: getattr(message, name) for name in names})


async def _stream(call: Any) -> AsyncIterator[Chunk]:
    try:
        async for response in call:
            yield Chunk(
                request_id=response.request_id,
                deltas=tuple(_delta(output) for output in response.outputs),
                usage=_usage(response.usage) if response.HasField("usage") else None,
            )
    finally:
        call.cancel()  # an abandoned call would go on; no-op once it has ended


def _delta(output: pb.SequenceDelta) -> Delta:
    reason = pb.FinishReason.Name(output.finish.reason) if output.HasField("finish") else None
    return Delta(
        index=output.index,
        text=output.text,
        num_tokens=len(output.token_ids),
        finish_reason=reason and reason.removeprefix("FINISH_REASON_").lower(),
    )


def _usage(usage: pb.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )

"""A client of the public API, as the command line uses it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc
from rpc.client import open_channel
from signalbox.connection import PLAIN, Connection

HEALTH_POLL_S = 0.1

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
class Chunk:
    """One message of the answer's stream."""

    request_id: str
    deltas: tuple[Delta, ...]
    usage: Usage | None
    """In the last one."""


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

    async def model_name(self) -> str:
        """Returns the name of the served model."""
        return str((await self._get_model()).name)

    async def _get_model(self) -> Any:
        return await self._stub.GetModel(pb.GetModelRequest(), timeout=10, metadata=self._metadata)

    def generate(
        self, prompt: str, *, sampling: dict[str, Any], timeout_s: float | None = None
    ) -> AsyncIterator[Chunk]:
        """Streams the continuation of a prompt.

        Args:
            sampling: fields of SamplingParams, by name.
        """
        request = pb.GenerateRequest(text=prompt, sampling_params=pb.SamplingParams(**sampling))
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

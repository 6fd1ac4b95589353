"""A router as the target of a load, over our public gRPC API."""

from collections.abc import AsyncIterator
from typing import Any, Self, cast

import grpc

from signalbox.answer import explain
from signalbox.bench.loops import RequestFailed
from signalbox.bench.measured import Measured
from signalbox.bench.workload import Ask
from signalbox.connection import Connection
from signalbox.inference_client import Chunk, InferenceClient, Message, Model, Role


class GrpcTarget:
    """Calls a router."""

    def __init__(
        self, address: str, connection: Connection, *, timeout_s: float | None = None
    ) -> None:
        self._client = InferenceClient(address, connection)
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._client.__aexit__()

    async def model(self) -> Model:
        """Raises RuntimeError in one line."""
        try:
            return await self._client.model()
        except grpc.aio.AioRpcError as error:
            raise RuntimeError(explain(error, self._client.address)) from error

    async def send(self, ask: Ask, measured: Measured) -> AsyncIterator[int]:
        """Yields how many tokens each message brings. Raises RequestFailed."""
        try:
            async for chunk in self._call(ask):
                yield sum(delta.num_tokens for delta in chunk.deltas)
                if chunk.usage is not None:
                    measured.num_prompt_tokens += chunk.usage.prompt_tokens
        except grpc.aio.AioRpcError as error:
            raise RequestFailed(error.code().name) from error

    def _call(self, ask: Ask) -> AsyncIterator[Chunk]:
        sampling: dict[str, Any] = dict(ask.sampling)
        if isinstance(stop := sampling.get("stop"), str):
            sampling["stop"] = [stop]
        options: dict[str, Any] = {"sampling": sampling, "timeout_s": self._timeout_s}
        if ask.prompt is not None:
            return self._client.generate(ask.prompt, **options)
        messages = [Message(role=cast(Role, role), text=text) for role, text in ask.messages]
        return self._client.chat(messages, **options)

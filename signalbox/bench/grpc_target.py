"""A router as the target of a load, over its public gRPC API."""

from collections.abc import AsyncIterator
from typing import Any, Self

import grpc

from signalbox.bench.load_loops import RequestFailed
from signalbox.bench.measurements import Measured
from signalbox.bench.workload import BenchRequest
from signalbox.client.connection import Connection, dial
from signalbox.client.terminal_answer import explained
from signalbox_client import AsyncClient, AsyncStream, Model, RequestError
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1.inference_pb2_grpc import InferenceServiceStub


class GrpcTarget:
    """Calls a router."""

    def __init__(
        self,
        address: str,
        connection: Connection,
        *,
        model: str = "",
        timeout_s: float | None = None,
    ) -> None:
        channel = dial(address, connection)
        self._client = AsyncClient(address, channel=channel, api_key=connection.api_key)
        self._stub = InferenceServiceStub(channel)
        self._metadata = connection.metadata
        self._model = model
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._client.close()

    async def model(self, *, task: str = "generate") -> Model:
        """Returns the named model, else the first one of a task. Raises RuntimeError with a message
        of one line."""
        with explained(self._client.address):
            if not self._model and task != "generate":
                of_task = [one for one in await self._client.models() if one.task == task]
                self._model = of_task[0].name if of_task else ""
            return await self._client.model(self._model)

    async def send(self, ask: BenchRequest, measured: Measured) -> AsyncIterator[int]:
        """Yields the number of tokens in each message. Raises RequestFailed."""
        if ask.texts:
            await self._embed(ask.texts, measured)
            return
        try:
            async with self._call(ask) as stream:
                async for chunk in stream.chunks():
                    yield sum(len(delta.token_ids) for delta in chunk.deltas)
                    if chunk.usage is not None:
                        measured.num_prompt_tokens += chunk.usage.prompt_tokens
        except RequestError as error:
            raise RequestFailed(error.code.name, error.message) from error

    async def _embed(self, texts: tuple[str, ...], measured: Measured) -> None:
        inputs = [pb.PoolingInput(text=text) for text in texts]
        request = pb.EmbedRequest(inputs=inputs, model=self._model)
        try:
            answer = await self._stub.Embed(
                request, timeout=self._timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise RequestFailed(error.code().name, error.details() or "") from error
        measured.num_texts += len(answer.embeddings)
        measured.num_prompt_tokens += answer.usage.prompt_tokens

    def _call(self, ask: BenchRequest) -> AsyncStream:
        options: dict[str, Any] = {
            **ask.sampling,
            "model": self._model,
            "timeout_s": self._timeout_s,
        }
        if isinstance(stop := ask.sampling.get("stop"), str):
            options["stop"] = [stop]
        if ask.prompt is not None:
            return self._client.stream_generate(ask.prompt, **options)
        turns = [{"role": role, "content": text} for role, text in ask.messages]
        return self._client.stream_chat(turns, **options)

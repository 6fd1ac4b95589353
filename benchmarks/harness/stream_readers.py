"""Streaming clients that cost little: each has a request running at any time, and notes what comes.

They live in a process of their own, each with a connection of its own as real clients have.
"""

import asyncio
import itertools
import time
from array import array
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import grpc

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc

PROMPT_TOKENS = 32


@dataclass(slots=True)
class Seen:
    """Messages that all clients have read, a row for each message with tokens."""

    read_ns: "array[int]" = field(default_factory=lambda: array("q"))
    first_token: "array[int]" = field(default_factory=lambda: array("q"))
    """The oldest token of the message."""
    num_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, token_ids: Sequence[int]) -> None:
        """Adds a message, if it has tokens."""
        if token_ids:
            self.read_ns.append(time.monotonic_ns())
            self.first_token.append(token_ids[0])
            self.num_tokens.append(len(token_ids))
            self.begun.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """So many clients of a router."""

    address: str
    num_clients: int
    num_connections: int
    max_tokens: int
    """Tokens of each request; the next one follows at once."""

    async def run(self, seen: Seen) -> None:
        """Reads until it is cancelled."""
        async with AsyncExitStack() as stack:
            stubs = [await self._connect(stack) for _ in range(self.num_connections)]
            async with asyncio.TaskGroup() as tasks:
                for _, stub in zip(range(self.num_clients), itertools.cycle(stubs), strict=False):
                    tasks.create_task(self._read(stub, seen))

    async def _connect(self, stack: AsyncExitStack) -> pb_grpc.InferenceServiceStub:
        # Channels to one address share a connection otherwise.
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(self.address, options=options)
        return pb_grpc.InferenceServiceStub(await stack.enter_async_context(channel))

    async def _read(self, stub: pb_grpc.InferenceServiceStub, seen: Seen) -> None:
        params = pb.SamplingParams(max_tokens=self.max_tokens, ignore_eos=True)
        prompt = pb.TokenIds(ids=[1] * PROMPT_TOKENS)
        request = pb.GenerateRequest(token_ids=prompt, sampling_params=params)
        while True:
            async for response in stub.Generate(request):
                for output in response.outputs:
                    seen.add(output.token_ids)

"""A scheduler without an engine: every live request gets a token a step, steps come at a rate.

It stands in for scheduler and workers where the router alone is measured. Requests are dealt out
to `num_groups` workers whose steps lie evenly in time, as those of real workers nearly do; one step
is one message, whatever its size. A token id says which step it is of, so that whoever reads it can
look up in `sent_ns` when it was sent.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from signalbox_contract.columns import pack_int32, pack_int64
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from signalbox_worker.runner.loading.byte_tokenizer import (
    END_OF_SEQUENCE_ID,
    MIN_VOCAB_SIZE,
    tokenizer_files,
)

NUM_STEP_IDS = 4096
"""Tokens that name a step: a message that is late by more steps would be taken for a newer one."""
VOCAB_SIZE = MIN_VOCAB_SIZE + NUM_STEP_IDS
MAX_MODEL_LEN = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Rate of tokens."""

    num_requests: int
    """Requests that run at a time."""
    num_groups: int
    """Workers that share them; at most as many as requests."""
    tokens_per_s: float

    @property
    def step_s(self) -> float:
        """Seconds between two steps, over all workers."""
        return self.num_requests / self.num_groups / self.tokens_per_s


@dataclass(slots=True)
class PacedScheduler(pb_grpc.SchedulerServiceServicer):
    """Serves one router. Tokens are held back until all requests of the pace run."""

    pace: Pace
    sent_ns: list[int] = field(default_factory=list)
    """Time of sending each step, in nanoseconds on the monotonic clock."""
    _groups: list[dict[int, int]] = field(init=False)
    """Tokens that each live request of a worker still gets."""
    _next_group: "itertools.cycle[dict[int, int]]" = field(init=False)
    _is_full: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._groups = [{} for _ in range(self.pace.num_groups)]
        self._next_group = itertools.cycle(self._groups)

    async def Connect(
        self, requests: AsyncIterator[pb.ConnectRequest], context: Any
    ) -> AsyncIterator[pb.ConnectResponse]:
        reading = asyncio.create_task(self._read(requests))
        try:
            await self._is_full.wait()
            due = time.perf_counter()
            for group in itertools.cycle(self._groups):
                due = max(due + self.pace.step_s, time.perf_counter() - 1)  # not for ever behind
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                outputs = self._step(group)
                self.sent_ns.append(time.monotonic_ns())
                yield pb.ConnectResponse(updates=outputs)
        finally:
            reading.cancel()

    async def _read(self, requests: AsyncIterator[pb.ConnectRequest]) -> None:
        async for request in requests:
            match request.WhichOneof("message"):
                case "add_request":
                    added = request.add_request
                    next(self._next_group)[added.handle] = added.max_tokens
                    if sum(map(len, self._groups)) == self.pace.num_requests:
                        self._is_full.set()
                case "abort_request":
                    for group in self._groups:
                        group.pop(request.abort_request.handle, None)

    def _step(self, group: dict[int, int]) -> pb.RequestUpdates:
        """Returns a step of one worker; ends the requests that have all their tokens."""
        handles = list(group)
        token_id = MIN_VOCAB_SIZE + len(self.sent_ns) % NUM_STEP_IDS
        outputs = pb.RequestUpdates(
            handles=pack_int64(handles),
            indices=pack_int32([0] * len(handles)),
            token_ids=pack_int32([token_id] * len(handles)),
        )
        for handle in handles:
            group[handle] -= 1
            if not group[handle]:
                del group[handle]
                reason = pb.FINISH_REASON_LENGTH
                outputs.finished_sequences.add(handle=handle, reason=reason)
                outputs.finished_requests.add(handle=handle)
        return outputs

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        info = common_pb2.ModelInfo(
            name="paced",
            architecture="simulated",
            dtype="float32",
            vocab_size=VOCAB_SIZE,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=[END_OF_SEQUENCE_ID],
            tokenizer_sha256="0" * 64,
        )
        return pb.GetModelResponse(model=info)

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        files = tokenizer_files(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)
        for name, content in files.items():
            yield pb.GetTokenizerResponse(file_name=name, chunk=content)


async def serve(scheduler: PacedScheduler) -> tuple[grpc.aio.Server, int]:
    """Starts a server; returns it and its port."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    pb_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port

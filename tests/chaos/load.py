"""Clients of a router that ask again and again, and leave at times; every request is on record."""

import asyncio
import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import grpc

from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel
from tests.chaos.checks.history import Record
from tests.waiting import EVENT_S

PAUSE_S = 0.3
"""After a request that did not end well, as a client would wait."""
REQUEST_S = EVENT_S
"""Longer than anything may take; a request that hangs is one that never ended."""


class Load(ABC):
    """Clients that ask one request after the other; every one is on record."""

    def __init__(self, address: str) -> None:
        self.records: list[Record] = []
        self.undisturbed: dict[str, Record] = {}
        """What each request is answered while nothing happens, by name; `learn` asks."""
        self._address = address
        self._is_over = False
        self._may_ask = asyncio.Event()
        self._may_ask.set()

    @abstractmethod
    async def learn(self) -> None:
        """Asks every request once while nothing happens."""

    @abstractmethod
    async def _talk(
        self, stub: pb_grpc.InferenceServiceStub, record: Record, leave_after: int | None
    ) -> None:
        """Sends a request and notes its answer.

        Args:
            leave_after: messages, or steps of time, after which the client cancels it.
        """

    async def run(self, *, num_clients: int, seed: int, abort_share: float = 0.3) -> None:
        """Asks until `finish` is called."""
        async with asyncio.TaskGroup() as group:
            for number in range(num_clients):
                rng = random.Random(f"{seed} {number}")
                group.create_task(self._client(rng, abort_share=abort_share))

    def finish(self) -> None:
        """Nothing new is asked from now on."""
        self._is_over = True
        self._may_ask.set()

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Asks nothing within the block, which begins once all requests have ended."""
        self._may_ask.clear()
        async with asyncio.timeout(REQUEST_S):
            while any(record.ended is None for record in self.records):  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0.02)
        yield
        self._may_ask.set()

    async def until_ok(self, *, since: float) -> float:
        """Waits for a request that began later and ended well; returns when it ended."""
        async with asyncio.timeout(REQUEST_S):
            while True:
                good = [r for r in self.records[-500:] if r.began > since and r.is_ok]
                if good:
                    return min(r.ended or 0.0 for r in good)
                await asyncio.sleep(0.02)

    def count_drafts(self) -> tuple[int, int]:
        """Returns how many drafts were computed, and how many of them accepted."""
        computed = sum(record.num_drafts for record in self.records)
        return computed, sum(record.num_accepted for record in self.records)

    @contextlib.asynccontextmanager
    async def _stub(self) -> AsyncIterator[pb_grpc.InferenceServiceStub]:
        async with open_channel(self._address) as channel:
            yield pb_grpc.InferenceServiceStub(channel)

    async def _client(self, rng: random.Random, *, abort_share: float) -> None:
        async with self._stub() as stub:
            while await self._may_ask.wait() and not self._is_over:
                leaves = rng.random() < abort_share
                leave_after = rng.randrange(12) if leaves else None
                record = await self._ask(stub, rng.choice(list(self.undisturbed)), leave_after)
                if not record.is_ok and not record.has_left:
                    await asyncio.sleep(PAUSE_S)

    async def _ask(
        self, stub: pb_grpc.InferenceServiceStub, shape: str, leave_after: int | None = None
    ) -> Record:
        record = Record(shape=shape, began=time.monotonic())
        self.records.append(record)
        try:
            async with asyncio.timeout(REQUEST_S):
                await self._talk(stub, record, leave_after)
                record.end(grpc.StatusCode.OK, "", time.monotonic())
        except grpc.aio.AioRpcError as error:
            record.end(error.code(), error.details() or "", time.monotonic())
        except asyncio.CancelledError:
            if not record.has_left:
                raise
            record.end(grpc.StatusCode.CANCELLED, "", time.monotonic())
        except TimeoutError:
            record.wrong.append(f"nothing for {REQUEST_S:.0f} s")
        return record

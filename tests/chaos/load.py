"""Mixed load on a router: greedy and seeded, branches, stop strings, clients that leave."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator

import grpc

from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc as pb_grpc
from rpc.transport.channel import open_channel
from tests.chaos.checks.history import Record

PAUSE_S = 0.3
"""After a request that did not end well, as a client would wait."""
REQUEST_S = 240.0
"""Longer than anything may take; a request that hangs is one that never ended."""

_ALONE: dict[str, tuple[pb.GenerateRequest, Record]] = {}
"""Each shape, and what it says alone: all stacks run one model, and to learn it takes seconds."""


def make_shapes() -> dict[str, pb.GenerateRequest]:
    """The requests that are asked again and again, by name."""
    shapes = {}
    for number, length in enumerate((1, 15, 40, 90)):
        prompt = [number + 1] * length
        for name, fields in {
            "greedy": {"max_tokens": 90},
            "short": {"max_tokens": 8},
            "seeded": {"max_tokens": 60, "temperature": 1.0, "seed": number, "n": 2},
        }.items():
            params = pb.SamplingParams(**{"temperature": 0, "ignore_eos": True, **fields})
            request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling_params=params)
            shapes[f"{name} {length}"] = request
    return shapes


def with_stop(request: pb.GenerateRequest, text: str) -> pb.GenerateRequest:
    """The same request with a stop string from the middle of what it says."""
    stopped = pb.GenerateRequest()
    stopped.CopyFrom(request)
    stopped.sampling_params.stop.append(text[len(text) // 2 :][:6])
    return stopped


class Load:
    """Clients that ask one request after the other; every one is on record."""

    def __init__(self, address: str) -> None:
        self.records: list[Record] = []
        self.undisturbed: dict[str, Record] = {}
        self._address = address
        self._shapes = make_shapes()
        self._is_over = False

    async def learn(self) -> None:
        """Asks every shape once while nothing happens, unless a load of this process has."""
        if not _ALONE:
            await self._ask_all()
            for name, shape in self._shapes.items():
                _ALONE[name] = (shape, self.undisturbed[name])
        self._shapes = {name: shape for name, (shape, _) in _ALONE.items()}
        self.undisturbed = {name: record for name, (_, record) in _ALONE.items()}

    async def _ask_all(self) -> None:
        """Asks the shapes one after the other; the stop strings come from what they say."""
        async with self._stub() as stub:
            for name in list(self._shapes):
                whole = await self._ask(stub, name)
                self.undisturbed[name] = whole
                if name.startswith("greedy"):
                    shape = with_stop(self._shapes[name], whole.text[0])
                    self._shapes[f"stopped {name}"] = shape
                    self.undisturbed[f"stopped {name}"] = await self._ask(stub, f"stopped {name}")
        assert all(record.is_ok for record in self.undisturbed.values()), self.undisturbed
        self.records.clear()

    async def run(self, *, num_clients: int, seed: int, abort_share: float = 0.3) -> None:
        """Asks until `finish` is called."""
        async with asyncio.TaskGroup() as group:
            for number in range(num_clients):
                rng = random.Random(f"{seed} {number}")
                group.create_task(self._client(rng, abort_share=abort_share))

    def finish(self) -> None:
        """Nothing new is asked from now on."""
        self._is_over = True

    async def until_ok(self, *, since: float) -> float:
        """Waits for a request that began later and ended well; returns when it ended."""
        async with asyncio.timeout(REQUEST_S):
            while True:
                good = [r for r in self.records[-500:] if r.began > since and r.is_ok]
                if good:
                    return min(r.ended or 0.0 for r in good)
                await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def _stub(self) -> AsyncIterator[pb_grpc.InferenceServiceStub]:
        async with open_channel(self._address) as channel:
            yield pb_grpc.InferenceServiceStub(channel)

    async def _client(self, rng: random.Random, *, abort_share: float) -> None:
        async with self._stub() as stub:
            while not self._is_over:
                leaves = rng.random() < abort_share
                leave_after = rng.randrange(12) if leaves else None
                record = await self._ask(stub, rng.choice(list(self._shapes)), leave_after)
                if not record.is_ok and not record.has_left:
                    await asyncio.sleep(PAUSE_S)

    async def _ask(
        self, stub: pb_grpc.InferenceServiceStub, shape: str, leave_after: int | None = None
    ) -> Record:
        record = Record(shape=shape, began=time.monotonic())
        self.records.append(record)
        call = stub.Generate(self._shapes[shape])
        try:
            async with asyncio.timeout(REQUEST_S):
                async for response in call:
                    record.add(response)
                    if record.num_messages == leave_after:
                        record.has_left = True
                        call.cancel()
                record.end(grpc.StatusCode.OK, "", time.monotonic())
        except grpc.aio.AioRpcError as error:
            record.end(error.code(), error.details() or "", time.monotonic())
        except asyncio.CancelledError:
            if not record.has_left:
                raise
            record.end(grpc.StatusCode.CANCELLED, "", time.monotonic())
        except TimeoutError:
            record.wrong.append(f"nothing for {REQUEST_S:.0f} s")
        finally:
            call.cancel()
        return record

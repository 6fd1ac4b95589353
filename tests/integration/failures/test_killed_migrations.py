"""Processes that are killed, and hosts that are cut off, while a group goes from one worker to
another: nothing stays pinned, and clients get what they would have got."""

import asyncio
import contextlib
import operator
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.hosts import Host
from signalbox.client.scheduler_client import SchedulerClient
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel
from tests.chaos.services import START_S, Service, stats_of, until_free
from tests.integration.failures.held_migrations import HOLD, STATE
from tests.integration.stack import running_router
from tests.integration.test_stack import make_request
from tests.ports import free_port
from tests.signalbox.stacks import COMMAND
from tests.simulated_model import expected_tokens
from tests.waiting import eventually

pytestmark = pytest.mark.system

HELD = (sys.executable, "-m", "tests.integration.failures.held_migrations")
NUM_STREAMS, MOST_TOKENS = 4, 4000
"""Streams last for more than a minute, and are cancelled when all is over."""
PROMPTS = [[number + 1] * (90 + number) for number in range(NUM_STREAMS)]
SIMULATED = ("--simulate", "--simulated-gpu-blocks=1200", "--simulated-cpu-blocks=200")


async def gauge(worker: Service, name: str, **labels: str) -> float:
    """Returns the value of a gauge that a worker shows."""
    samples = [
        sample
        for family in text_string_to_metric_families(await asyncio.to_thread(worker.metrics))
        for sample in family.samples
    ]
    (value,) = (
        one.value
        for one in samples
        if one.name == f"signalbox_{name}" and labels.items() <= one.labels.items()
    )
    return float(value)


async def until(worker: Service, expected: bool, name: str, **labels: str) -> None:
    """Waits until a gauge of a worker, which may not listen yet, is not 0, or is."""
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(URLError):
                if bool(await gauge(worker, name, **labels)) is expected:
                    return
            await asyncio.sleep(0.02)


async def until_nothing_moves(worker: Service) -> None:
    """Waits until a worker exports nothing, and reads nothing of another."""
    for direction in ("export", "read"):
        await until(worker, False, "worker_kv_peer_moves", direction=direction)


@contextlib.asynccontextmanager
async def started(service: Service) -> AsyncIterator[Service]:
    service.start()
    try:
        yield service
    finally:
        await service.kill()


class Killing:
    """A scheduler and two workers, all processes, each on a host of its own if there are some."""

    def __init__(self, folder: Path, made: Sequence[Host] = ()) -> None:
        port = free_port()
        first, *others = made or [None] * 3
        self.address = f"{first.address if first else '127.0.0.1'}:{port}"
        self.scheduler = Service(
            ("scheduler", f"--worker-wait={START_S:g}"),
            port,
            folder / "scheduler.log",
            command=HELD,
            host=first,
        )
        flags = ("worker", *SIMULATED, "--simulated-step-ms=20", f"--scheduler={self.address}")
        self.workers = [
            Service(flags, free_port(), folder / f"worker{number}.log", command=HELD, host=host)
            for number, host in enumerate(others)
        ]

    async def until_joined(self, number: int) -> None:
        """Waits until so many workers run that take requests."""
        async with asyncio.timeout(START_S):
            while True:
                with contextlib.suppress(Exception):  # it may not listen yet
                    workers = (await stats_of(self.address)).workers
                    if sum(not one.is_draining for one in workers) == number:
                        return
                await asyncio.sleep(0.05)

    async def drain_the_busier(self) -> tuple[Service, Service]:
        """Drains the worker that has more requests; returns it and the other one."""
        async with asyncio.timeout(START_S):
            while True:
                stats = await stats_of(self.address)
                if sum(one.num_requests_running for one in stats.workers) == NUM_STREAMS:
                    break
                await asyncio.sleep(0.02)
        name = max(stats.workers, key=lambda one: one.num_requests_running).address
        async with SchedulerClient(self.address) as client:
            await client.drain(name)
        source = next(one for one in self.workers if name.endswith(f":{one.port}"))
        (destination,) = (one for one in self.workers if one is not source)
        return source, destination


class Streams:
    """Clients of a router that read until they cancel."""

    def __init__(self, stub: pb_grpc.InferenceServiceStub) -> None:
        self._token_ids: list[list[int]] = [[] for _ in PROMPTS]
        self._calls = [
            stub.Generate(make_request(prompt, max_tokens=MOST_TOKENS)) for prompt in PROMPTS
        ]
        self._reading = [
            asyncio.create_task(self._read(call, token_ids))
            for call, token_ids in zip(self._calls, self._token_ids, strict=True)
        ]

    @staticmethod
    async def _read(call: Any, token_ids: list[int]) -> None:
        async for response in call:
            for output in response.outputs:
                token_ids += output.token_ids

    async def cancel(self, *, after: int) -> None:
        """Leaves after so many more tokens of each. Raises AssertionError if one is wrong."""
        wanted = [len(token_ids) + after for token_ids in self._token_ids]

        def have_come() -> bool:
            for one in self._reading:
                assert not one.done(), one.result()
            return all(map(operator.ge, map(len, self._token_ids), wanted))

        await eventually(have_come)
        for call, one in zip(self._calls, self._reading, strict=True):
            call.cancel()
            await asyncio.wait([one])
        for prompt, token_ids in zip(PROMPTS, self._token_ids, strict=True):
            assert token_ids == expected_tokens(prompt, num_tokens=len(token_ids))


CASES = pytest.mark.parametrize(
    ("harmed", "state"),
    [
        ("scheduler", "copying"),
        ("scheduler", "paused"),
        ("source", "paused"),
        ("destination", "copying"),
    ],
)


@CASES
async def test_nothing_stays_pinned_when_a_process_is_killed_in_a_migration(
    harmed: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harm_in_a_migration(Killing(tmp_path), harmed, state, tmp_path, monkeypatch)


@CASES
async def test_nothing_stays_pinned_when_a_host_is_cut_off_in_a_migration(
    harmed: str,
    state: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    three: list[Host],
) -> None:
    """Neither on those that are left, nor on the one that is cut off."""
    await harm_in_a_migration(Killing(tmp_path, three), harmed, state, tmp_path, monkeypatch)


async def harm_in_a_migration(
    stack: Killing, harmed: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = tmp_path / "hold"
    monkeypatch.setenv(HOLD, str(hold))
    monkeypatch.setenv(STATE, state)
    async with contextlib.AsyncExitStack() as running:
        for service in (stack.scheduler, *stack.workers):
            await running.enter_async_context(started(service))
        await stack.until_joined(2)
        router = await running.enter_async_context(
            running_router(stack.address, resume_wait=START_S)
        )
        channel = await running.enter_async_context(open_channel(router.server.address))
        streams = Streams(pb_grpc.InferenceServiceStub(channel))
        source, destination = await stack.drain_the_busier()
        await eventually(hold.exists)
        await until(source, True, "worker_kv_peer_moves", direction="export")
        await until(destination, True, "worker_kv_peer_moves", direction="read")
        ends = {"source": source, "destination": destination}
        victim = {"scheduler": stack.scheduler, **ends}[harmed]
        left = [source, destination]
        if victim.host is not None:
            victim.host.cut_off()
        else:
            victim.send(signal.SIGKILL)
            assert await victim.wait() == -signal.SIGKILL
            left = [one for one in left if one is not victim]
        for worker in left:  # while what reads, and what is read, still hangs
            if victim in (stack.scheduler, worker):
                await until(worker, False, "worker_lease")
            await until_nothing_moves(worker)
        hold.unlink()
        if victim.host is not None:
            victim.host.connect()
        elif victim is not source:
            victim.command = tuple(COMMAND)
            victim.start()
        await streams.cancel(after=8)
        if victim is stack.scheduler:
            await stack.until_joined(2)
        else:
            await until(destination, True, "worker_lease")
        await until_free(stack.address)
        if victim is destination:
            assert await source.wait() == 0, "it has drained, and leaves"
        for worker in (source, destination):
            if worker.process is not None and worker.process.poll() is None:
                await until_nothing_moves(worker)

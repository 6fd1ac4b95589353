"""Every port is attacked while streams run: the streams say what they say, and nothing stays."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_router.main import Router
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.main import serving
from tests.chaos.hostile import ATTACKS, half_open
from tests.integration.stack import running_worker, simulated
from tests.integration.test_mtls import worker as mtls_worker
from tests.integration.test_stack import ask, make_request
from tests.router.stack import make_config
from tests.rpc.certificates import Authority, tls_settings
from tests.waiting import EVENT_S, eventually

STREAMS = [
    make_request([1, 2, 3], max_tokens=40),
    make_request([4] * 30, max_tokens=40, temperature=1, seed=3, n=2),
]
NUM_ROUNDS = 2
SLACK = {"files": 6, "tasks": 6, "threads": 6, "MiB": 32}
"""What may come and go by itself. OpenSSL's and gRPC's pools fill over several rounds."""
STARTS_S = EVENT_S


@dataclass(slots=True)
class Attacked:
    """The ports of a whole stack in this process, and a client of its own."""

    ports: dict[str, int]
    stub: pb_grpc.InferenceServiceStub

    async def say(self) -> list[dict[int, list[int]]]:
        answers = await asyncio.gather(*(ask(self.stub, request) for request in STREAMS))
        return [answer.token_ids for answer in answers]


@contextlib.asynccontextmanager
async def running(tls: dict[str, TlsConfig]) -> AsyncIterator[Attacked]:
    async with contextlib.AsyncExitStack() as stack:
        scheduler, _ = await stack.enter_async_context(
            serving(SchedulerConfig(port=0, **tls_settings(tls["scheduler"])))
        )
        if tls["worker"] is CLEAR:
            own = await stack.enter_async_context(running_worker(scheduler.address, simulated()))
            worker = own.server
        else:
            worker, _ = await stack.enter_async_context(
                mtls_worker(scheduler.address, tls["worker"])
            )
        serves = asyncio.Event()
        router = Router(
            make_config(scheduler.address, http_port=0, **tls_settings(tls["router"])),
            on_serving=lambda _name: serves.set(),
        )
        await router.start()
        stack.push_async_callback(router.stop)
        stack.push_async_callback(router.drain, grace_s=0)
        async with asyncio.timeout(STARTS_S):
            await serves.wait()
        channel = open_channel(router.server.address, tls=tls["client"])
        await stack.enter_async_context(channel)
        assert router.http is not None
        ports = {
            "router": router.server.port,
            "HTTP": router.http.port,
            "scheduler": scheduler.port,
            "worker": worker.port,
        }
        yield Attacked(ports, pb_grpc.InferenceServiceStub(channel))


def make_tls(folder: Path, *, is_on: bool) -> dict[str, TlsConfig]:
    names = ("router", "scheduler", "worker", "client")
    if not is_on:
        return dict.fromkeys(names, CLEAR)
    authority = Authority(folder)
    return {name: authority.member(name, "127.0.0.1") for name in names}


async def attack(attacked: Attacked, rng: random.Random) -> None:
    """Everything on every port at once, beside peers that stay half-open meanwhile."""
    async with contextlib.AsyncExitStack() as stack:
        for port in attacked.ports.values():
            await stack.enter_async_context(half_open(port))
        for one in ATTACKS:
            await asyncio.gather(*(one(port, rng) for port in attacked.ports.values()))


def held() -> dict[str, int]:
    """What this process holds."""
    process = psutil.Process()
    return {
        "files": process.num_fds(),
        "tasks": len(asyncio.all_tasks()),
        "threads": process.num_threads(),
        "MiB": process.memory_info().rss >> 20,
    }


def grown(before: dict[str, int]) -> dict[str, int]:
    return {name: now for name, now in held().items() if now > before[name] + SLACK[name]}


@pytest.mark.parametrize("is_on", [False, True], ids=["clear", "mTLS"])
async def test_streams_go_on_unchanged_whatever_comes_in(tmp_path: Path, is_on: bool) -> None:
    async with running(make_tls(tmp_path, is_on=is_on)) as attacked:
        expected = await attacked.say()
        said: list[list[dict[int, list[int]]]] = []
        is_over = False

        async def watch() -> None:
            while not is_over:
                said.append(await attacked.say())

        rng = random.Random(1)
        watching = asyncio.create_task(watch())
        await attack(attacked, rng)  # caches fill, pools grow
        before = held()
        num_rounds = 0
        while num_rounds < NUM_ROUNDS or len(said) <= NUM_ROUNDS:
            await attack(attacked, rng)
            num_rounds += 1
        await eventually(lambda: not grown(before))
        is_over = True
        await watching
        assert all(one == expected for one in said)
        assert await attacked.say() == expected

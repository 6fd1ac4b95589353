"""A whole stack that is fed with anything, while a healthy stream is watched beside it.

The services run on a loop of their own thread, so that hypothesis can send one request after the
other and shrink what goes wrong.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc
from signalbox_router.apis.inference.servicer import SERVICE_NAME
from signalbox_router.main import Router
from signalbox_scheduler.config import SchedulerConfig
from tests.integration.stack import (
    RunningScheduler,
    running_scheduler,
    running_worker,
    simulated,
    until_serving,
)
from tests.router.stack import make_config
from tests.waiting import EVENT_S, eventually

T = TypeVar("T")

MAX_MODEL_LEN = 2048
NUM_BLOCKS = 64
"""Of 16 tokens: half of what one request of the longest length needs."""
MESSAGES_READ = 3
"""Of an answer, before the client leaves."""
OUTAGES_FORGIVEN = 5
HEALTHY = pb.GenerateRequest(
    text="The healthy one",
    sampling_params=pb.SamplingParams(temperature=1, seed=7, max_tokens=40, ignore_eos=True),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended; `fields` are those that a BadRequest names."""

    code: grpc.StatusCode
    message: str = ""
    fields: tuple[str, ...] = ()
    answers: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Services:
    """Router, scheduler and a simulated worker, and a client that sends bytes."""

    router: Router
    scheduler: RunningScheduler
    channel: grpc.aio.Channel
    expected: str = ""
    """What the healthy stream says when it is alone."""
    num_healthy: int = 0
    wrong: list[str] = field(default_factory=list)

    async def send(self, method: str, data: bytes) -> Outcome:
        """Sends bytes as they are, reads the beginning of the answer, and leaves.

        A machine that stands still for seconds costs the worker its lease; a request that costs it
        does so each time that it is sent.
        """
        for _ in range(OUTAGES_FORGIVEN):
            outcome = await self._send_once(method, data)
            if outcome.code is not grpc.StatusCode.UNAVAILABLE:
                break
            await until_serving(self.router.server.address)
        return outcome

    async def _send_once(self, method: str, data: bytes) -> Outcome:
        call = self.channel.unary_stream(f"/{SERVICE_NAME}/{method}")(data)  # `run` bounds it
        answers: list[bytes] = []
        try:
            async for answer in call:
                answers.append(answer)
                if len(answers) == MESSAGES_READ:
                    break
        except grpc.aio.AioRpcError as error:
            return Outcome(error.code(), error.details() or "", _fields(error))
        finally:
            call.cancel()
        return Outcome(grpc.StatusCode.OK, answers=tuple(answers))

    async def say_healthy(self) -> str:
        stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        answers = [answer async for answer in stub.Generate(HEALTHY)]
        return "".join(output.text for answer in answers for output in answer.outputs)

    async def watch(self) -> None:
        """Asks the healthy request again and again."""
        while True:
            if (text := await self.say_healthy()) != self.expected:
                self.wrong.append(text)
            self.num_healthy += 1
            await asyncio.sleep(0.05)  # leaves the cores to the others

    async def until_idle(self) -> None:
        """Everything has ended, and every block is free."""
        cluster = self.scheduler.cluster
        await eventually(lambda: not self.router.live.num_live)
        await eventually(
            lambda: not any(step_loop.scheduler.has_unfinished for step_loop in cluster.step_loops)
        )
        cluster.check()
        assert len(cluster.requests) == 0
        for step_loop in cluster.step_loops:
            for pool in (step_loop.scheduler.blocks.gpu, step_loop.scheduler.blocks.cpu):
                assert pool.num_free == pool.num_blocks


def _fields(error: grpc.aio.AioRpcError) -> tuple[str, ...]:
    metadata: dict[str, Any] = dict(error.trailing_metadata() or ())
    bad = error_details_pb2.BadRequest()
    for detail in status_pb2.Status.FromString(
        metadata.get("grpc-status-details-bin", b"")
    ).details:
        detail.Unpack(bad)
    return tuple(violation.field for violation in bad.field_violations)


@contextlib.asynccontextmanager
async def _running() -> AsyncIterator[Services]:
    worker = simulated(
        max_model_len=MAX_MODEL_LEN, num_gpu_blocks=NUM_BLOCKS, num_cpu_blocks=NUM_BLOCKS
    )
    config = SchedulerConfig(port=0, explain_history=0, lease_s=60, step_timeout_s=120)
    options = [("grpc.max_send_message_length", -1)]
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(running_scheduler(config))
        await stack.enter_async_context(running_worker(scheduler.address, worker))
        router = Router(make_config(scheduler.address, http_port=0))
        await router.start()
        try:
            address = router.server.address
            await until_serving(address)
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                services = Services(router, scheduler, channel)
                services.expected = await services.say_healthy()
                yield services
        finally:
            await router.drain(grace_s=0)
            await router.stop()


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(EVENT_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(frozen=True, slots=True)
class Target:
    """What tests hold: the services, and the way onto their loop."""

    services: Services
    loop: Loop

    def send(self, method: str, data: bytes) -> Outcome:
        return self.loop.run(self.services.send(method, data))

    def wait_until_idle(self) -> None:
        """Waits until the stack is idle but for the healthy stream, which may have ended."""
        self.loop.run(self.services.until_idle())

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within it the healthy stream is asked for; afterwards nothing is wrong or left."""
        seen = self.services.num_healthy
        watch = self.loop.run(_start(self.services.watch()))
        try:
            yield
            self.loop.run(eventually(lambda: self.services.num_healthy > seen))
        finally:
            self.loop.run(_stop(watch))
        assert self.services.wrong == []
        self.wait_until_idle()


async def _start(coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    return asyncio.create_task(coroutine)


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def fuzzed_stack() -> Iterator[Target]:
    """A stack to be fed with anything; nothing is left of its requests at the end."""
    loop, running = Loop(), _running()
    try:
        services = loop.run(running.__aenter__())
        try:
            yield Target(services, loop)
        finally:
            loop.run(running.__aexit__(None, None, None))
    finally:
        loop.close()


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

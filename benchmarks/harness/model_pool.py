"""Workers of a model that come and go, each on a core of its own, and their clients.

Each rank of a worker has one thread.

Router, scheduler and clients are on the same machine, and run on whatever core the system gives
them, as those of a small deployment do.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import grpc
import psutil

from benchmarks.harness.answers import Answer, Asked
from benchmarks.harness.hosts import Host
from signalbox.client.scheduler_client import SchedulerClient
from signalbox.client.service_client import CallRefused, Unreachable
from signalbox.stack.processes.child_processes import Child, start, watch
from signalbox.stack.stack_addresses import free_port
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_protos.scheduler.v1 import explain_pb2, stats_pb2
from signalbox_rpc.transport.channel import open_channel

POLL_S = 0.02
END_S = 10.0
START_S = 120.0
"""Longest that a process may take to serve."""
LOCAL = "127.0.0.1"
_SIMULATED = ("--simulate", "--simulated-step-ms", "20")


@dataclass(slots=True, eq=False)
class ModelAnswer(Answer):
    """Tokens that a client got, and when, by time.perf_counter."""

    request_id: str = ""
    prompt: Sequence[int] = ()
    token_ids: list[int] = field(default_factory=list)
    reading: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        """Says whether the client reads no more of it, for whatever reason."""
        return self.reading is not None and self.reading.done()


class ModelWorker(NamedTuple):
    """A worker that has joined."""

    address: str
    process: Child
    host: Host | None = None


class ModelPool:
    """Workers that share a scheduler, behind a router."""

    def __init__(
        self,
        model: str | None,
        router: pb_grpc.InferenceServiceStub,
        scheduler: SchedulerClient,
        scheduler_flags: Sequence[str] = (),
        host: Host | None = None,
    ) -> None:
        """Workers are simulated without a model; the scheduler may have a host of its own."""
        self.answers: list[ModelAnswer] = []
        self._model = _SIMULATED if model is None else (model, "--num-threads", "1")
        self._router = router
        self.has_model = model is not None
        self._scheduler = scheduler
        self._scheduler_flags = scheduler_flags
        self.host = host
        self.scheduler: Child
        """The process; set by `start_scheduler`."""
        self._children: list[Child] = []
        self._reading: list[asyncio.Task[None]] = []

    async def start(
        self, name: str, *flags: str, core: int | None = None, host: Host | None = None
    ) -> Child:
        """Starts a `signalbox` command, with all its threads on one core if one is named."""
        if host is not None:
            flags = *flags, "--host", host.address, "--insecure"
        with contextlib.nullcontext() if host is None else host.inside():
            started = start(name, [*flags, "--log-level", "warning"])
        child = await watch(started)
        if core is not None:
            cores = sorted(os.sched_getaffinity(0))
            psutil.Process(child.pid).cpu_affinity([cores[core % len(cores)]])
        self._children.append(child)
        self._reading.append(asyncio.create_task(_read_all(child)))
        return child

    async def start_scheduler(self) -> None:
        """Starts the scheduler, or another one in its place."""
        port = self._scheduler.address.rpartition(":")[2]
        self.scheduler = await self.start(
            "scheduler", "scheduler", "--port", port, *self._scheduler_flags, host=self.host
        )

    async def join(self, *flags: str, core: int, host: Host | None = None) -> ModelWorker:
        """Adds a worker, and returns when it has joined."""
        before = {worker.address for worker in await self.workers()}
        all_flags = *self._model, "--scheduler", self._scheduler.address, *flags
        process = await self.start("worker", "worker", *all_flags, core=core, host=host)
        while not (new := {one.address for one in await self.workers()} - before):
            assert process.is_alive, f"a worker {process.ending}"
            await asyncio.sleep(POLL_S)
        await self.model()  # the router has heard of it
        return ModelWorker(new.pop(), process, host)

    @property
    def scheduler_address(self) -> str:
        return self._scheduler.address

    async def is_serving(self) -> bool:
        """Returns whether the router has a scheduler with a worker."""
        try:
            await self._router.GetModel(pb.GetModelRequest())
        except grpc.aio.AioRpcError:
            return False
        return True

    async def workers(self) -> Sequence[stats_pb2.WorkerStats]:
        """Returns what the scheduler counts of each worker that has joined."""
        while True:
            with contextlib.suppress(Unreachable, CallRefused):
                return (await self._scheduler.stats()).workers
            await asyncio.sleep(POLL_S)

    async def model(self) -> pb.GetModelResponse:
        """Returns what the router says of the model, once it serves."""
        async with asyncio.timeout(START_S):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    return await self._router.GetModel(pb.GetModelRequest())
                await asyncio.sleep(POLL_S)

    def ask(self, prompt: Sequence[int], *, max_tokens: int, cache_salt: str = "") -> ModelAnswer:
        """Has a client send a greedy request now that the end of sequence does not end."""
        answer = ModelAnswer(
            Asked(len(prompt), max_tokens),
            time.perf_counter(),
            request_id=f"r{len(self.answers)}",
            prompt=prompt,
        )
        self.answers.append(answer)
        answer.reading = asyncio.create_task(self._read(answer, cache_salt))
        self._reading.append(answer.reading)
        return answer

    async def _read(self, answer: ModelAnswer, cache_salt: str) -> None:
        request = pb.GenerateRequest(
            request_id=answer.request_id,
            token_ids=pb.TokenIds(ids=answer.prompt),
            cache_salt=cache_salt,
            sampling_params=pb.SamplingParams(
                temperature=0, max_tokens=answer.asked.max_tokens, ignore_eos=True
            ),
        )
        try:
            async for response in self._router.Generate(request):
                now = time.perf_counter()
                for output in response.outputs:
                    answer.token_times += [now] * len(output.token_ids)
                    answer.token_ids += output.token_ids
        except grpc.aio.AioRpcError as error:
            answer.failure = f"{error.code().name}: {error.details()}"

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Returns when something is true of the answers.

        Raises RuntimeError if one fails, and if all end before.
        """
        while not is_so():
            for answer in self.answers:
                if answer.failure:
                    raise RuntimeError(f"{answer.request_id}: {answer.failure}")
            if all(answer.has_ended for answer in self.answers):
                raise RuntimeError("all answers have ended before what was waited for")
            await asyncio.sleep(POLL_S)

    async def until_whole(self, answers: Sequence[ModelAnswer]) -> None:
        await self.until(lambda: all(answer.is_whole for answer in answers))

    async def until_more(self, answers: Sequence[ModelAnswer], num_tokens: int) -> None:
        """Returns when each answer has so many more tokens."""
        wanted = [(answer, len(answer.token_times) + num_tokens) for answer in answers]
        await self.until(lambda: all(len(one.token_times) >= number for one, number in wanted))

    async def check(self, answers: Sequence[ModelAnswer]) -> None:
        """Has all computed anew while nothing disturbs. Raises AssertionError if a token differs.

        The prompts are computed whole: a salt hides what workers have cached of them.
        """
        again = [
            self.ask(one.prompt, max_tokens=len(one.token_ids), cache_salt="undisturbed")
            for one in answers
        ]
        await self.until_whole(again)
        for one, other in zip(answers, again, strict=True):
            assert one.token_ids == other.token_ids, f"tokens of {one.request_id} are wrong"

    @staticmethod
    async def cancel(answers: Sequence[ModelAnswer]) -> None:
        """Has clients cancel their requests; the answers keep the tokens that have come."""
        for answer in answers:
            assert answer.reading is not None
            answer.reading.cancel()
            await asyncio.wait([answer.reading])

    def drain(self, worker: ModelWorker) -> None:
        """Has a worker leave once it has ended what it had, or its time to drain is over."""
        worker.process.send(signal.SIGTERM)

    async def until_left(self, worker: ModelWorker) -> None:
        """Returns when no request runs on a worker."""
        while True:
            workers = {one.address: one for one in await self.workers()}
            left = workers.get(worker.address)
            if left is None or not left.num_requests_running + left.num_requests_swapped:
                return
            await asyncio.sleep(POLL_S)

    async def count_migrations(self, answers: Sequence[ModelAnswer]) -> int:
        """Returns how many of the requests were migrated."""
        kind = explain_pb2.EVENT_KIND_MIGRATED
        events = [(await self._scheduler.explain(one.request_id)).events for one in answers]
        return sum(any(event.kind == kind for event in some) for some in events)

    async def stop(self) -> None:
        """Ends all processes, workers first."""
        for child in reversed(self._children):
            await child.end(within_s=END_S)
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)


async def _read_all(child: Child) -> None:
    await child.news.read()


@contextlib.asynccontextmanager
async def model_pool(
    model: str | None, *scheduler_flags: str, host: Host | None = None
) -> AsyncIterator[ModelPool]:
    """Yields a pool of which no worker has joined yet; its scheduler may have a host of its own."""
    router_port, scheduler_port = str(free_port()), str(free_port())
    async with (
        open_channel(f"{LOCAL}:{router_port}") as channel,
        SchedulerClient(f"{host.address if host else LOCAL}:{scheduler_port}") as scheduler,
    ):
        router = pb_grpc.InferenceServiceStub(channel)
        pool = ModelPool(model, router, scheduler, scheduler_flags, host)
        try:
            await pool.start_scheduler()
            ports = "--grpc-port", router_port, "--scheduler", scheduler.address
            await pool.start("router", "router", "--no-http", *ports)
            yield pool
        finally:
            await pool.stop()

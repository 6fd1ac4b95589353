"""A stack of real processes with a fault proxy in every link, and what can be done to them."""

import asyncio
import contextlib
import resource
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.hosts import Host
from signalbox.commands.inspect.readings import read
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc, stats_pb2
from signalbox_rpc.transport.channel import open_channel
from tests.chaos.checks.leaks import Sample, sample_of
from tests.chaos.fault_proxy import FaultProxy, fault_proxy
from tests.integration.stack import until_serving
from tests.ports import free_port
from tests.signalbox.stacks import COMMAND, of_service
from tests.waiting import EVENT_S

START_S = EVENT_S
WORKER_FLAGS = (
    "--simulate",
    "--simulated-gpu-blocks=96",
    "--simulated-cpu-blocks=32",
    "--simulated-store-blocks=200",
    "--simulated-step-ms=5",
    "--max-num-batched-tokens=256",
    "--max-num-seqs=64",
    "--speculation",
)
POOLING_FLAGS = (
    "--simulate",
    "--simulated-pooling=mean",
    "--simulated-gpu-blocks=96",
    "--simulated-step-ms=5",
    "--max-num-batched-tokens=64",
    "--max-num-seqs=64",
)
"""Most prompts of a load are divided into chunks, whose sums a worker keeps."""


@dataclass(slots=True)
class Service:
    """One process, which may be started again under the same name and port."""

    arguments: tuple[str, ...]
    port: int
    log: Path
    metrics_port: int = field(default_factory=free_port)
    command: tuple[str, ...] = tuple(COMMAND)
    """What the arguments are given to."""
    limits: Mapping[int, int] = field(default_factory=dict)
    """Of the process, soft and hard, by `resource.RLIMIT_*`."""
    host: Host | None = None
    """Where it runs, if not here."""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        flag = "--grpc-port" if self.arguments[0] == "router" else "--port"
        flags = [f"{flag}={self.port}", f"--metrics-port={self.metrics_port}"]
        within: list[str] = []
        if self.host is not None:
            within = self.host.command
            flags += [f"--host={self.host.address}", "--insecure"]
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(
                [*within, *self.command, *self.arguments, *flags], stderr=sink, env=of_service()
            )
        for kind, limit in self.limits.items():
            resource.prlimit(self.process.pid, kind, (limit, limit))

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def sample(self) -> Sample:
        """What the process holds; it must serve."""
        return sample_of(self.pid, metrics=self.metrics())

    def metrics(self) -> str:
        """What it shows, also if its host is cut off."""
        host = "127.0.0.1" if self.host is None else self.host.address
        with (
            contextlib.nullcontext() if self.host is None else self.host.inside(),
            urllib.request.urlopen(
                f"http://{host}:{self.metrics_port}/metrics", timeout=START_S
            ) as answer,
        ):
            return str(answer.read().decode())

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def wait(self, *, within_s: float = START_S) -> int:
        """Waits for its end; returns the exit status."""
        assert self.process is not None
        async with asyncio.timeout(within_s):
            while (status := self.process.poll()) is None:  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0.02)
        return status

    async def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGKILL)
            await self.wait()


@dataclass(slots=True)
class ChaosWorker:
    """A worker, the link that it registers over, and the link that its steps come over."""

    service: Service
    steps: FaultProxy


class Audits(NamedTuple):
    """Audits of a scheduler since it started."""

    num_waiting: float
    num_equal: float
    num_different: float


@dataclass(slots=True)
class ChaosStack:
    """Clients, router, scheduler, workers; all links between services pass a proxy."""

    router: Service
    scheduler: Service
    workers: list[ChaosWorker]
    registrations: FaultProxy
    """Of all workers, to the scheduler."""
    requests: FaultProxy
    """Of the router, to the scheduler."""
    seen: list[str] = field(default_factory=list)
    """Exits that were not as they should be, and audits that differed."""
    num_audits: int = 0
    """Most audits of one scheduler that had the bits of the answer."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.router.port}"

    @property
    def services(self) -> dict[str, Service]:
        workers = {f"worker {i}": worker.service for i, worker in enumerate(self.workers)}
        return {"router": self.router, "scheduler": self.scheduler, **workers}

    async def stats(self) -> stats_pb2.GetStatsResponse:
        return await stats_of(self._scheduler_address)

    @property
    def _scheduler_address(self) -> str:
        return f"127.0.0.1:{self.scheduler.port}"

    async def until_whole(self) -> None:
        """Waits until every process serves, and the scheduler has all workers."""
        for worker in self.workers:  # the scheduler may still count one that has just died
            await until_up(f"127.0.0.1:{worker.service.port}")
        await self.until_workers(len(self.workers))
        await until_up(self.address)

    async def until_workers(self, number: int) -> None:
        """Waits until the scheduler has so many workers."""
        async with asyncio.timeout(START_S):
            while True:
                with contextlib.suppress(Exception):  # it may not listen yet
                    if sum(not one.is_draining for one in (await self.stats()).workers) == number:
                        return
                await asyncio.sleep(0.1)

    async def until_audited(self) -> None:
        """Waits until the chosen answers are audited, and notes what differs."""
        async with asyncio.timeout(START_S):
            while (audits := await self._audits()).num_waiting:  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0.1)
        self.num_audits = max(self.num_audits, int(audits.num_equal))
        if audits.num_different:
            self.seen.append(f"{audits.num_different:.0f} audits differed from the answers")

    async def _audits(self) -> Audits:
        samples = read((), (await self.stats()).samples, seconds=1)
        totals = {
            one: samples.total(f"audits_{one}")
            for one in ("chosen", "equal", "different", "dropped")
        }
        ended = totals["equal"] + totals["different"] + totals["dropped"]
        return Audits(totals["chosen"] - ended, totals["equal"], totals["different"])

    async def until_free(self) -> None:
        """Waits until no request is left, and every block of both pools can be had."""
        await until_free(self._scheduler_address)

    async def stop(self) -> dict[str, int]:
        """Ends all by SIGTERM, the router first; returns the exit statuses."""
        statuses = {}
        for name, service in self.services.items():
            service.send(signal.SIGTERM)
            statuses[name] = await service.wait()
        return statuses


async def until_up(address: str) -> None:
    """Waits for the health of a server that may not listen yet."""
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(Exception):
                await until_serving(address)
                return
            await asyncio.sleep(0.1)


async def until_free(scheduler_address: str) -> None:
    """Waits until no request is left, and every block of both pools can be had."""
    async with asyncio.timeout(START_S):
        while not _is_free(await stats_of(scheduler_address)):  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.1)


async def stats_of(scheduler_address: str) -> stats_pb2.GetStatsResponse:
    async with open_channel(scheduler_address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        answer: stats_pb2.GetStatsResponse = await stub.GetStats(
            stats_pb2.GetStatsRequest(), timeout=START_S
        )
        return answer


def _is_free(stats: stats_pb2.GetStatsResponse) -> bool:
    return not stats.num_requests_waiting and all(
        worker.num_free_gpu_blocks == worker.num_gpu_blocks
        and worker.num_free_cpu_blocks == worker.num_cpu_blocks
        and not worker.num_requests_running
        for worker in stats.workers
    )


@contextlib.asynccontextmanager
async def chaos_stack(
    folder: Path,
    *,
    num_workers: int,
    worker_flags: tuple[str, ...] = WORKER_FLAGS,
    scheduler_flags: tuple[str, ...] = (),
) -> AsyncIterator[ChaosStack]:
    """Starts everything; whatever is left of it afterwards is killed."""
    async with contextlib.AsyncExitStack() as stack:
        ports = [free_port() for _ in range(2 + num_workers)]
        registrations = await stack.enter_async_context(fault_proxy(ports[1]))
        requests = await stack.enter_async_context(fault_proxy(ports[1]))
        steps = [await stack.enter_async_context(fault_proxy(port)) for port in ports[2:]]
        waits = f"--resume-wait={START_S:g}"
        router = ("router", "--no-http", f"--scheduler={requests.address}", waits)
        chaos = ChaosStack(
            router=Service((*router, "--log-level=info"), ports[0], folder / "router.log"),
            scheduler=Service(
                ("scheduler", f"--worker-wait={START_S:g}", "--audit-cpu=1", *scheduler_flags),
                ports[1],
                folder / "scheduler.log",
            ),
            workers=[
                ChaosWorker(
                    Service(
                        (
                            "worker",
                            *worker_flags,
                            f"--scheduler={registrations.address}",
                            f"--advertise={proxy.address}",
                            "--drain-timeout=0.3",
                        ),
                        proxy.target,
                        folder / f"worker{i}.log",
                    ),
                    proxy,
                )
                for i, proxy in enumerate(steps)
            ],
            registrations=registrations,
            requests=requests,
        )
        for service in chaos.services.values():
            service.start()
            stack.push_async_callback(service.kill)
        await chaos.until_whole()
        yield chaos

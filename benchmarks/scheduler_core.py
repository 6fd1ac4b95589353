"""Measures the load that one core of scheduler carries, with simulated workers and `Connect`.

    python -m benchmarks.scheduler_core [--workers 1 2 4 8] [--watch]

Each worker takes 20 ms a step and 64 sequences, so the ideal is 3,200 tokens a second for each. The
table gives throughput, its share of the ideal, the scheduler's CPU for each token, and p99 between
two tokens of a sequence.

With --watch each measurement is made in turns: a router stands beside, and in every second turn a
client watches the scheduler through it. The router has no other work.
"""

import argparse
import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np
import psutil
from numpy.typing import NDArray

from signalbox.stack.processes.child_processes import Child, start, watch
from signalbox_contract.columns import unpack_int32, unpack_int64
from signalbox_protos.operations.v1 import operations_pb2, operations_pb2_grpc
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from signalbox_protos.scheduler.v1 import stats_pb2
from signalbox_rpc.transport.channel import open_channel

PORT, ROUTER_PORT = 50152, 50151
STEP_MS = 20.0
SEQUENCES = 64
MEAN_TOKENS = 256


@dataclass(slots=True)
class Driver:
    """Keeps so many requests running on one Connect stream, and counts the tokens."""

    num_running: int
    num_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    """Times between two tokens of a request."""
    last_at: dict[int, float] = field(default_factory=dict)
    handles: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def run(self) -> None:
        async with open_channel(f"127.0.0.1:{PORT}") as channel:
            call = pb_grpc.SchedulerServiceStub(channel).Connect()
            for _ in range(self.num_running):
                await call.write(self._request())
            async for message in call:
                outputs = message.updates
                self.num_tokens += len(unpack_int32(outputs.token_ids))
                self._time(unpack_int64(outputs.handles))
                for ended in outputs.finished_requests:
                    assert not ended.code, ended.message
                    await call.write(self._request())

    def _time(self, handles: NDArray[np.int64]) -> None:
        now = time.perf_counter()
        for handle in handles.tolist():
            if handle in self.last_at:
                self.gaps_s.append(now - self.last_at[handle])
            self.last_at[handle] = now

    def _request(self) -> pb.ConnectRequest:
        handle = next(self.handles)
        request = pb.Request(
            handle=handle,
            request_id=f"r{handle}",
            prompt_token_ids=[handle % 256] * 32,
            max_tokens=MEAN_TOKENS // 2 + handle * 97 % MEAN_TOKENS,  # they do not end together
            num_sequences=1,
        )
        request.sampling_params.top_p = 1.0
        return pb.ConnectRequest(add_request=request)


async def start_services(num_workers: int, *, has_router: bool) -> list[Child]:
    """Starts the scheduler, the router if there is to be one, and the workers."""
    children = [start("scheduler", ["scheduler", "--port", str(PORT)])]
    if has_router:
        router = ["router", "--no-http", "--grpc-port", str(ROUTER_PORT)]
        children.append(start("router", [*router, "--scheduler", f"127.0.0.1:{PORT}"]))
    worker = ["worker", "--simulate", "--scheduler", f"127.0.0.1:{PORT}"]
    worker += ["--max-num-seqs", str(SEQUENCES), "--simulated-step-ms", str(STEP_MS)]
    children += [start(f"worker {i}", worker) for i in range(num_workers)]
    return [await watch(one) for one in children]


async def until_joined(num_workers: int) -> None:
    async with open_channel(f"127.0.0.1:{PORT}") as channel:
        stub = pb_grpc.SchedulerServiceStub(channel)
        while True:
            stats = await stub.GetStats(stats_pb2.GetStatsRequest(), wait_for_ready=True)
            if len(stats.workers) == num_workers:
                return
            await asyncio.sleep(0.1)


def cpu_s(child: Child) -> float:
    times = psutil.Process(child.pid).cpu_times()
    return float(times.user + times.system)


@contextlib.asynccontextmanager
async def watching() -> AsyncIterator[None]:
    """Watches the scheduler through the router, as one client."""

    async def read() -> None:
        async with open_channel(f"127.0.0.1:{ROUTER_PORT}") as channel:
            stub = operations_pb2_grpc.OperationsServiceStub(channel)
            async for _ in stub.Watch(operations_pb2.WatchRequest()):
                pass

    reading = asyncio.create_task(read())
    try:
        await asyncio.sleep(1)  # the first picture has come
        assert not reading.done(), "the router shows nothing"
        yield
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@dataclass(slots=True)
class Totals:
    """Sums of the turns of one kind."""

    num_tokens: int = 0
    seconds: float = 0.0
    scheduler_s: float = 0.0
    router_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)

    async def take(self, driver: Driver, children: list[Child], *, seconds: float) -> None:
        """Adds what happens in some seconds."""
        driver.gaps_s.clear()
        driver.last_at.clear()
        tokens, start = driver.num_tokens, time.perf_counter()
        before = [cpu_s(child) for child in children[:2]]
        await asyncio.sleep(seconds)
        after = [cpu_s(child) for child in children[:2]]
        self.seconds += time.perf_counter() - start
        self.num_tokens += driver.num_tokens - tokens
        self.scheduler_s += after[0] - before[0]
        self.router_s += after[1] - before[1]
        self.gaps_s += driver.gaps_s

    def row(self, num_workers: int, *, watched: str) -> str:
        ideal = num_workers * SEQUENCES * 1e3 / STEP_MS
        rate = self.num_tokens / self.seconds
        router = f"{self.router_s / self.seconds:.2%}" if watched else ""
        return (
            f"| {num_workers} | {watched} | {rate:,.0f} | {rate / ideal:.1%}"
            f" | {self.scheduler_s / self.num_tokens * 1e6:.1f}"
            f" | {self.scheduler_s / self.seconds:.2%} | {router}"
            f" | {np.percentile(self.gaps_s, 99) * 1e3:.2f} |"
        )


async def measure(num_workers: int, *, seconds: float, num_turns: int) -> list[str]:
    """Returns a row, or with turns one without a watcher and one with it."""
    children = await start_services(num_workers, has_router=bool(num_turns))
    alone, watched = Totals(), Totals()
    try:
        await until_joined(num_workers)
        driver = Driver(num_running=num_workers * SEQUENCES)
        driving = asyncio.create_task(driver.run())
        await asyncio.sleep(3)  # prompts are computed, and every step is full
        for _ in range(num_turns or 1):
            await alone.take(driver, children, seconds=seconds)
            if num_turns:
                async with watching():
                    await watched.take(driver, children, seconds=seconds)
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
    finally:
        await asyncio.gather(*(child.end(within_s=5) for child in reversed(children)))
    if not num_turns:
        return [alone.row(num_workers, watched="")]
    return [alone.row(num_workers, watched="no"), watched.row(num_workers, watched="yes")]


async def run(options: argparse.Namespace) -> None:
    print(
        "| workers | watched | tokens/s | of the ideal | scheduler µs CPU/token | of its core"
        " | router of its core | p99 between tokens, ms |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for num_workers in options.workers:
        turns = options.turns if options.watch else 0
        for row in await measure(num_workers, seconds=options.seconds, num_turns=turns):
            print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--watch", action="store_true", help="with and without a watcher, in turns")
    parser.add_argument("--turns", type=int, default=5, help="of each kind with --watch")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

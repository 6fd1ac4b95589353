"""Measures the cost of one router process: CPU for each token message, and added latency.

    python -m benchmarks.router [--rates 1000 4000 12000] [--clients 256] [--workers 8] [--pin]
    python -m benchmarks.router --servers /v1/chat/completions /v1/responses /v1/messages
    python -m benchmarks.router --servers /v1/completions connect+json connect+proto grpc-web-text

A paced scheduler sends each of the clients' requests a token a step; the clients read them through
a real router. Scheduler, router and clients have a process each. Beside it the same clients read as
much from a server that does nothing but write, which is what gRPC alone costs. A server that is a
path reads the router's stream of that HTTP API, and the others are the forms of a call that
browsers can make. For each offered
rate of tokens a second the table has what came through, how many tokens a message held (more than
one where the router coalesced), the server's CPU, and the time from the scheduler's writing to the
client's reading: both hops of gRPC and the client's own turn are in it. --pin gives the server the
first core alone and the others the rest, for a machine where nothing else runs; on a busy one go by
the CPU.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.harness import bare_stream
from benchmarks.harness.call_readers import CALLS, CallReaders
from benchmarks.harness.event_readers import HTTP_APIS, EventReaders
from benchmarks.harness.paced_scheduler import (
    MIN_VOCAB_SIZE,
    NUM_STEP_IDS,
    Pace,
    PacedScheduler,
    serve,
)
from benchmarks.harness.stream_readers import Readers, Seen
from signalbox.stack.processes.child_processes import start, watch
from signalbox.stack.stack_addresses import free_port

UNENDING = 1 << 19
"""Tokens of a request that lasts as long as the run."""
START_S = 120.0
"""Longest that the router may take to serve."""
POLL_S = 0.1
"""Seconds between two looks for a first message in the window."""
ROUTER, BARE = "router", "bare gRPC"
HEADER = (
    "| server | offered/s | tokens/s | tokens a message | µs CPU/token | µs CPU/message"
    " | of its core | latency p50 / p99 ms |\n|---|---|---|---|---|---|---|---|"
)
Int64Array = NDArray[np.int64]
Clients = Readers | EventReaders | CallReaders


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One rate, measured."""

    server: str
    offered: float
    duration_s: float
    cpu_s: float
    """CPU seconds of the server."""
    num_tokens: int
    latency_ms: NDArray[np.float64]
    """Latency of the oldest token of each message, in milliseconds."""

    def row(self) -> str:
        num_messages = len(self.latency_ms)
        p50, p99 = np.percentile(self.latency_ms, [50, 99])
        return (
            f"| {self.server} | {self.offered:,.0f} | {self.num_tokens / self.duration_s:,.0f}"
            f" | {self.num_tokens / num_messages:.2f} | {self.cpu_s / self.num_tokens * 1e6:.1f}"
            f" | {self.cpu_s / num_messages * 1e6:.1f} | {self.cpu_s / self.duration_s:.0%}"
            f" | {p50:.2f} / {p99:.2f} |"
        )


def latencies_ms(read_ns: Int64Array, first_token: Int64Array, sent_ns: Int64Array) -> Any:
    """Returns each message's time under way: since the last step of its token that was sent."""
    newest = np.searchsorted(sent_ns, read_ns) - 1
    behind = (newest + MIN_VOCAB_SIZE - first_token) % NUM_STEP_IDS
    return (read_ns - sent_ns[newest - behind]) / 1e6


async def _schedule(pipe: Connection, pace: Pace) -> None:
    scheduler = PacedScheduler(pace)
    server, port = await serve(scheduler)
    pipe.send(port)
    await asyncio.to_thread(pipe.recv)
    pipe.send(np.array(scheduler.sent_ns))
    await server.wait_for_termination()  # until it is killed: the router shall end first


async def _stream(pipe: Connection, pace: Pace) -> None:
    stream = bare_stream.BareStream(pace)
    _, port = await bare_stream.serve(stream)
    pipe.send(port)
    running = asyncio.create_task(stream.run())
    await asyncio.to_thread(pipe.recv)
    pipe.send(np.array(stream.sent_ns))
    await running


async def _read(pipe: Connection, readers: Clients) -> None:
    """Answers each question with the messages and tokens so far; at the last, with the messages.

    The first answer waits for the first token.
    """
    seen = Seen()
    reading = asyncio.create_task(readers.run(seen))
    begun = asyncio.create_task(seen.begun.wait())
    await asyncio.wait({reading, begun}, return_when=asyncio.FIRST_COMPLETED)
    while not await asyncio.to_thread(pipe.recv):
        if reading.done():
            reading.result()  # the process ends with the reason
        pipe.send((len(seen.read_ns), sum(seen.num_tokens)))
    pipe.send([np.array(column) for column in (seen.read_ns, seen.first_token)])
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def _enter(main: Any, pipe: Connection, argument: Any, cores: list[int]) -> None:
    if cores:
        psutil.Process().cpu_affinity(cores)
    asyncio.run(main(pipe, argument))


class Peer(NamedTuple):
    """A process of this benchmark, and the pipe to it."""

    pipe: Connection
    pid: int

    async def ask(self, *, is_last: bool = False) -> Any:
        """Returns the process's answer. Raises EOFError if it has died."""
        self.pipe.send(is_last)
        return await asyncio.to_thread(self.pipe.recv)


@contextlib.contextmanager
def process(main: Any, argument: Any, cores: list[int]) -> Iterator[Peer]:
    """Runs a coroutine in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    child = context.Process(target=_enter, args=(main, its, argument, cores), daemon=True)
    child.start()
    its.close()  # so that ours ends when the child does
    try:
        yield Peer(ours, child.pid or 0)
    finally:
        child.kill()
        child.join()


@contextlib.asynccontextmanager
async def router(
    scheduler_port: int, arguments: list[str], *, is_http: bool
) -> AsyncIterator[tuple[str, int]]:
    """Yields a router's address, that of gRPC or of HTTP, and process id once it serves."""
    grpc_port, http_port = free_port(), free_port()
    flags = ["--scheduler", f"127.0.0.1:{scheduler_port}", "--grpc-port", str(grpc_port)]
    flags += [f"--http-port={http_port}"] if is_http else ["--no-http"]
    flags += ["--log-level", "warning", "--trace-exporter", "none", *arguments]
    child = await watch(start("router", ["router", *flags]))
    try:
        async with asyncio.timeout(START_S):
            assert await child.news.readline(), f"the router {child.ending}"
        yield f"127.0.0.1:{http_port if is_http else grpc_port}", child.pid
    finally:
        await child.end(within_s=5)


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


class Serving(NamedTuple):
    """Requests of the clients, and the clock of the sent steps."""

    address: str
    pid: int
    source: Peer


@contextlib.asynccontextmanager
async def serving(
    server: str, pace: Pace, options: argparse.Namespace, cores: list[int]
) -> AsyncIterator[Serving]:
    """Starts a server that is fed at this pace."""
    with process(_stream if server == BARE else _schedule, pace, cores[1:]) as source:
        port = await asyncio.to_thread(source.pipe.recv)
        if server == BARE:
            yield Serving(f"127.0.0.1:{port}", source.pid, source)
            return
        is_http = server in HTTP_APIS or server in CALLS
        async with router(port, options.router_flags, is_http=is_http) as (address, pid):
            yield Serving(address, pid, source)


def readers_of(server: str, address: str, options: argparse.Namespace) -> Clients:
    num_clients, max_tokens = options.clients, options.max_tokens
    if server in HTTP_APIS:
        return EventReaders(
            address=address, api=server, num_clients=num_clients, max_tokens=max_tokens
        )
    if server in CALLS:
        return CallReaders(
            address=address, form=server, num_clients=num_clients, max_tokens=max_tokens
        )
    return Readers(
        address=address,
        num_clients=num_clients,
        num_connections=min(options.connections or num_clients, num_clients),
        max_tokens=max_tokens,
    )


async def measure(server: str, options: argparse.Namespace, *, tokens_per_s: float) -> Run:
    """Measures for `options.seconds`, and until a message has come in that time."""
    cores = sorted(os.sched_getaffinity(0)) if options.pin else []
    groups = min(options.workers, options.clients)
    pace = Pace(num_requests=options.clients, num_groups=groups, tokens_per_s=tokens_per_s)
    async with serving(server, pace, options, cores) as (address, pid, source):
        if cores:
            psutil.Process(pid).cpu_affinity(cores[:1])
        with process(_read, readers_of(server, address, options), cores[1:]) as clients:
            await clients.ask()
            await asyncio.sleep(options.warm_up)
            before, cpu, start = await clients.ask(), cpu_s(pid), time.perf_counter()
            await asyncio.sleep(options.seconds)
            while (after := await clients.ask()) == before:  # noqa: ASYNC110 (it is asked)
                await asyncio.sleep(POLL_S)
            cpu, end = cpu_s(pid) - cpu, time.perf_counter()
            read_ns, first_token = await clients.ask(is_last=True)
            sent_ns = await source.ask()
    return Run(
        server=server,
        offered=tokens_per_s,
        duration_s=end - start,
        cpu_s=cpu,
        num_tokens=after[1] - before[1],
        latency_ms=latencies_ms(read_ns, first_token, sent_ns)[before[0] : after[0]],
    )


async def run(options: argparse.Namespace) -> None:
    print(HEADER)
    for rate in options.rates:
        for server in options.servers:
            print((await measure(server, options, tokens_per_s=rate)).row(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rates", type=float, nargs="+", default=[1000, 4000, 12000])
    parser.add_argument(
        "--servers", nargs="+", default=[ROUTER, BARE], choices=[ROUTER, BARE, *HTTP_APIS, *CALLS]
    )
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--connections", type=int, help="of the clients (default: one each)")
    parser.add_argument("--workers", type=int, default=8, help="whose steps are shared out")
    parser.add_argument("--max-tokens", type=int, default=UNENDING, help="of each request")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--pin", action="store_true", help="the router to the first core")
    parser.add_argument("--router-flags", nargs="*", default=[], metavar="FLAG")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""A process is killed, stopped or paused under streams: when that is noticed, and how long streams
wait.

    python -m benchmarks.failover [--faults killed stopped paused] [--pauses 1.5 2.0] [--rounds 5]
    python -m benchmarks.failover --faults drain prefill [--victims source destination scheduler]
    python -m benchmarks.failover --cut [--faults killed paused drain prefill] [--pauses 1]

Two workers, simulated with steps of 20 ms or of a model (--model), router and scheduler are
processes. The streams run until the fault is over, and their tokens are compared with those of the
same prompts that nothing disturbs afterwards. With `drain` and `prefill` a process is killed while
one worker reads what the other one exports, because it is drained, or computes only prompts: then
the time until the others export and read nothing counts. With `--cut` scheduler and workers have a
host each, a network namespace, which root can make. Instead of being killed or paused, a host is
cut off: all packets from and to it are dropped. Then the worker that is cut off has to export and
read nothing, too.
"""

import argparse
import asyncio
import contextlib
import itertools
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.harness.hosts import Host, hosts
from benchmarks.harness.model_pool import (
    POLL_S,
    ModelAnswer,
    ModelPool,
    ModelWorker,
    model_pool,
)
from benchmarks.harness.prompts import random_prompts
from signalbox.stack.processes.child_processes import Child
from signalbox.stack.stack_addresses import free_port

NUM_BEFORE = 8
"""Tokens that each stream has when the fault begins."""
NUM_AFTER = 8
"""Tokens that each stream gets once the loss is known, or the moves have ended."""
LOSS_S = 4.0
"""Time after a pause in which a loss by it is known."""
LONGEST_S = 120.0
"""Longest time to wait for a loss, or for what must not last."""
MOVES = re.compile(r'^signalbox_worker_kv_peer_moves\{.*direction="(\w+)".*\} (\d)', re.MULTILINE)
SOURCE, DESTINATION, SCHEDULER = "source", "destination", "scheduler"
Hosts = Sequence[Host | None]
ON_NONE: Hosts = (None, None)
"""Workers that share the host of this process."""


class Outcome(NamedTuple):
    """Times in seconds from the fault on."""

    after: float | None
    """Until the worker was lost, or until nothing was exported and read; None if that never was."""
    longest_gap: float
    """Between two tokens of a stream."""


class Streams:
    """Streams of one pool, which run until the fault is over."""

    def __init__(self, pool: ModelPool, *, num_streams: int, context: int) -> None:
        self._pool = pool
        self._num_streams, self._context = num_streams, context
        self._answers: list[ModelAnswer] = []

    async def warm_up(self) -> None:
        """Has the workers compute all prompts."""
        await self.ask(max_tokens=NUM_BEFORE)
        await self._pool.until_whole(self._answers)

    async def ask(self, *, max_tokens: int | None = None) -> None:
        """Begins all. Args: max_tokens: of each; by default what the model's window leaves."""
        served = await self._pool.model()
        most = served.effective_max_model_len - self._context
        prompts = random_prompts(
            vocab_size=served.vocab_size, num_tokens=self._context, seed=self._context
        )
        self._answers = [
            self._pool.ask(prompt, max_tokens=max_tokens or most)
            for prompt in itertools.islice(prompts, self._num_streams)
        ]

    async def until_begun(self) -> None:
        """Waits until each stream has some tokens."""
        await self._pool.until_more(self._answers, NUM_BEFORE)

    async def longest_gap_s(self, *, since: float) -> float:
        """Waits until each stream goes on, and ends all. Raises AssertionError if a token is
        wrong."""
        await self._pool.until_more(self._answers, NUM_AFTER)
        await self._pool.cancel(self._answers)
        await self._pool.check(self._answers)
        return max(one.longest_gap_s(since=since) for one in self._answers)


async def fault(
    pool: ModelPool, streams: Streams, name: str, pause_s: float, made: Hosts = ON_NONE
) -> Outcome:
    """Does something to one of two workers under streams, and undoes it."""
    workers = [await pool.join(core=core, host=host) for core, host in enumerate(made)]
    await streams.warm_up()
    await streams.ask()
    await streams.until_begun()
    victim, began = workers[0], time.perf_counter()
    harm(victim.process, victim.host, signal.SIGKILL if name == "killed" else signal.SIGSTOP)
    noticing = asyncio.create_task(_until_lost(pool, victim, began=began))
    if name == "paused":
        await asyncio.sleep(pause_s)
        mend(victim.process, victim.host)
        await asyncio.wait([noticing], timeout=LOSS_S)
        noticing.cancel()
    await asyncio.wait([noticing])
    after = None if noticing.cancelled() else noticing.result()
    gap_s = await streams.longest_gap_s(since=began)
    victim.process.send(signal.SIGKILL)
    return Outcome(after, gap_s)


def harm(process: Child, host: Host | None, number: signal.Signals) -> None:
    """Cuts off the host of a process, or sends the process a signal if it has none of its own."""
    if host is None:
        process.send(number)
    else:
        host.cut_off()


def mend(process: Child, host: Host | None) -> None:
    """Undoes what does not end a process."""
    if host is None:
        process.send(signal.SIGCONT)
    else:
        host.connect()


async def _until_lost(pool: ModelPool, worker: ModelWorker, *, began: float) -> float:
    """Returns the seconds until the scheduler has the worker no more."""
    async with asyncio.timeout(LONGEST_S):
        while any(one.address == worker.address for one in await pool.workers()):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    return time.perf_counter() - began


async def harm_in_move(
    pool: ModelPool, streams: Streams, why: str, victim: str, made: Hosts = ON_NONE
) -> Outcome:
    """Kills or cuts off a process while one worker reads what the other one exports."""
    ports = [free_port(), free_port()]
    swap = ("--swap-space", "1") if pool.has_model else ()
    roles = ("prefill", "decode") if why == "prefill" else ("both", "both")
    flags = [
        ("--drain-timeout", "60", "--role", role, "--metrics-port", str(port), *swap)
        for role, port in zip(roles, ports, strict=True)
    ]
    workers = [await pool.join(*flags[0], core=0, host=made[0])]
    await streams.warm_up()
    if why == "drain":
        await streams.ask()
        await streams.until_begun()
    workers.append(await pool.join(*flags[1], core=1, host=made[1]))
    if why == "drain":
        pool.drain(workers[0])
    else:
        await streams.ask()
    source, destination = zip(workers, ports, strict=True)
    await until(lambda: moves(*source, "export") and moves(*destination, "read"))
    began = time.perf_counter()
    victims = {SOURCE: workers[0], DESTINATION: workers[1]}
    process = victims[victim].process if victim in victims else pool.scheduler
    host = victims[victim].host if victim in victims else pool.host
    harm(process, host, signal.SIGKILL)
    left = [
        one
        for name, one in ((SOURCE, source), (DESTINATION, destination))
        if name != victim or host is not None
    ]
    await until(lambda: not any(moves(*one, way) for one in left for way in ("export", "read")))
    after = time.perf_counter() - began
    if host is not None:
        host.connect()
    elif victim == SCHEDULER:
        await pool.start_scheduler()
    elif victim == DESTINATION and why == "drain":
        await pool.join(*flags[1], core=1)
    return Outcome(after, await streams.longest_gap_s(since=began))


async def until(is_so: Callable[[], bool]) -> None:
    """Waits for what may be asked on another thread."""
    async with asyncio.timeout(LONGEST_S):
        while not await asyncio.to_thread(is_so):
            pass


def moves(worker: ModelWorker, port: int, direction: str) -> bool:
    """Returns whether a worker exports something, or reads something of another."""
    return dict(MOVES.findall(metrics(worker, port))).get(direction, "0") != "0"


def metrics(worker: ModelWorker, port: int) -> str:
    """Returns what a worker shows, also if its host is cut off; nothing if it has ended."""
    url = f"http://{worker.address.rpartition(':')[0]}:{port}/metrics"
    try:
        with (
            contextlib.nullcontext() if worker.host is None else worker.host.inside(),
            urllib.request.urlopen(url, timeout=LONGEST_S) as answer,
        ):
            return str(answer.read().decode())
    except OSError:  # a drained worker has ended
        return ""


def row(name: str, outcomes: Sequence[Outcome]) -> str:
    """Returns a row of the table: medians, and the longest in brackets."""
    after = [one.after for one in outcomes if one.after is not None]
    cells = (
        name,
        f"{len(after)} of {len(outcomes)}",
        _times(after),
        _times([one.longest_gap for one in outcomes]),
    )
    return f"| {' | '.join(cells)} |"


def _times(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.2f} ({max(seconds):.2f})" if seconds else ""


async def outcomes(
    args: argparse.Namespace, name: str, *, victim: str = "", pause_s: float = 0.0
) -> list[Outcome]:
    """Returns those of all rounds, each of which has a pool of its own."""
    found = []
    for _ in range(args.rounds):
        async with contextlib.AsyncExitStack() as stack:
            host, *of_workers = stack.enter_context(hosts(3)) if args.cut else (None, *ON_NONE)
            pool = await stack.enter_async_context(model_pool(args.model, host=host))
            streams = Streams(pool, num_streams=args.streams, context=args.context)
            if victim:
                found.append(await harm_in_move(pool, streams, name, victim, of_workers))
            else:
                found.append(await fault(pool, streams, name, pause_s, of_workers))
    return found


HEADER = (
    "| fault | worker lost, or moves ended | after s | longest gap of a stream s |"
    "\n|---|---|---|---|"
)


async def run(args: argparse.Namespace) -> None:
    print(HEADER)
    for name in args.faults:
        done = "cut off" if args.cut else name
        if name in ("drain", "prefill"):
            for victim in args.victims:
                found = await outcomes(args, name, victim=victim)
                print(row(f"{victim} {'cut off' if args.cut else 'killed'}, {name}", found))
        elif name == "paused":
            for pause_s in args.pauses:
                found = await outcomes(args, name, pause_s=pause_s)
                print(row(f"worker {done} for {pause_s:g} s", found))
        else:
            print(row(f"worker {done}", await outcomes(args, name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="of the workers; without one they are simulated")
    kinds = ("killed", "stopped", "paused", "drain", "prefill")
    parser.add_argument("--faults", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--cut", action="store_true", help="cut hosts off, in place of signals")
    parser.add_argument("--pauses", type=float, nargs="+", default=[1.5, 2.0], help="seconds")
    victims = (SOURCE, DESTINATION, SCHEDULER)
    parser.add_argument("--victims", nargs="+", choices=victims, default=victims)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--context", type=int, default=1024, help="tokens of each prompt")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""A process is killed, stopped or paused under streams: when that is noticed, and how long streams
wait.

    python -m benchmarks.failover [--faults killed stopped paused] [--pauses 1.5 2.0] [--rounds 5]
    python -m benchmarks.failover --faults drain prefill [--victims owner taker scheduler]

Two workers, simulated with steps of 20 ms or of a model (--model), router and scheduler are
processes. The tokens of each stream are compared with those of the same prompt that nothing
disturbed. With `drain` and `prefill` a process is killed while one worker reads what the other one
lends, because it is drained, or computes only prompts: then the time until the others lend and read
nothing counts.
"""

import argparse
import asyncio
import itertools
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.harness.model_pool import (
    LOCAL,
    POLL_S,
    ModelAnswer,
    ModelPool,
    ModelWorker,
    model_pool,
)
from signalbox.bench.workload import random_prompts
from signalbox.stack.stack_addresses import free_port

NUM_BEFORE = 8
"""Tokens that each stream has when the fault begins."""
LONGEST_S = 30.0
"""Longest time to wait for a loss, or for what must not last."""
MOVES = re.compile(r'^signalbox_worker_kv_peer_moves\{.*direction="(\w+)".*\} (\d)', re.MULTILINE)
OWNER, TAKER, SCHEDULER = "owner", "taker", "scheduler"


class Outcome(NamedTuple):
    """Times in seconds from the fault on."""

    after: float | None
    """Until the worker was lost, or until nothing was lent and read; None if that never was."""
    longest_gap: float
    """Between two tokens of a stream."""


class Streams:
    """Streams of one pool, with what they say undisturbed."""

    def __init__(self, pool: ModelPool, *, num_streams: int, context: int, num_tokens: int) -> None:
        self._pool = pool
        self._num_streams, self._context, self._num_tokens = num_streams, context, num_tokens
        self._prompts: list[list[int]] = []
        self._expected: list[list[int]] = []
        self._answers: list[ModelAnswer] = []

    async def learn(self) -> None:
        """Asks all while nothing happens."""
        size = (await self._pool.model()).vocab_size
        prompts = random_prompts(vocab_size=size, num_tokens=self._context, seed=self._context)
        self._prompts = list(itertools.islice(prompts, self._num_streams))
        self.ask()
        await self.until_whole()
        self._expected = [answer.token_ids for answer in self._answers]

    def ask(self) -> None:
        self._answers = [
            self._pool.ask(prompt, max_tokens=self._num_tokens) for prompt in self._prompts
        ]

    async def until_begun(self) -> None:
        """Waits until each stream has some tokens."""
        await self._pool.until(
            lambda: all(len(one.token_times) >= NUM_BEFORE for one in self._answers)
        )

    async def until_whole(self) -> None:
        await self._pool.until(lambda: all(one.is_whole for one in self._answers))

    async def longest_gap_s(self, *, since: float) -> float:
        """Waits for all tokens. Raises AssertionError if one is wrong."""
        await self.until_whole()
        for answer, expected in zip(self._answers, self._expected, strict=True):
            assert answer.token_ids == expected, f"tokens of {answer.request_id} are wrong"
        ended_later = [one for one in self._answers if one.token_times[-1] > since]
        return max((one.longest_gap_s(since=since) for one in ended_later), default=0.0)


async def fault(pool: ModelPool, streams: Streams, name: str, pause_s: float) -> Outcome:
    """Does something to one of two workers under streams, and undoes it."""
    workers = [await pool.join(core=core) for core in range(2)]
    await streams.learn()
    streams.ask()
    await streams.until_begun()
    victim, began = workers[0], time.perf_counter()
    victim.process.send(signal.SIGKILL if name == "killed" else signal.SIGSTOP)
    noticing = asyncio.create_task(_until_lost(pool, victim, began=began))
    if name == "paused":
        await asyncio.sleep(pause_s)
        victim.process.send(signal.SIGCONT)
        await asyncio.wait([noticing], timeout=pause_s)  # a loss is known by then
        noticing.cancel()
    await asyncio.wait([noticing])
    after = None if noticing.cancelled() else noticing.result()
    gap_s = await streams.longest_gap_s(since=began)
    victim.process.send(signal.SIGKILL)
    return Outcome(after, gap_s)


async def _until_lost(pool: ModelPool, worker: ModelWorker, *, began: float) -> float:
    """Returns the seconds until the scheduler has the worker no more."""
    async with asyncio.timeout(LONGEST_S):
        while any(one.address == worker.address for one in await pool.workers()):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    return time.perf_counter() - began


async def kill_in_move(pool: ModelPool, streams: Streams, why: str, victim: str) -> Outcome:
    """Kills a process while one worker reads what the other one lends."""
    ports = [free_port(), free_port()]
    swap = ("--swap-space", "1") if pool.has_model else ()
    roles = ("prefill", "decode") if why == "prefill" else ("both", "both")
    flags = [
        ("--drain-timeout", "60", "--role", role, "--metrics-port", str(port), *swap)
        for role, port in zip(roles, ports, strict=True)
    ]
    workers = [await pool.join(*flags[0], core=0)]
    await streams.learn()
    if why == "drain":
        streams.ask()
        await streams.until_begun()
    workers.append(await pool.join(*flags[1], core=1))
    if why == "drain":
        pool.drain(workers[0])
    else:
        streams.ask()
    await _until(lambda: _moves(ports[0], "lend") and _moves(ports[1], "read"))
    began = time.perf_counter()
    killed = {OWNER: workers[0].process, TAKER: workers[1].process, SCHEDULER: pool.scheduler}
    killed[victim].send(signal.SIGKILL)
    left = [port for port, one in zip(ports, (OWNER, TAKER), strict=True) if one != victim]
    await _until(lambda: not any(_moves(port, way) for port in left for way in ("lend", "read")))
    after = time.perf_counter() - began
    if victim == SCHEDULER:
        await pool.start_scheduler()
    elif victim == TAKER and why == "drain":
        await pool.join(*flags[1], core=1)
    return Outcome(after, await streams.longest_gap_s(since=began))


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONGEST_S):
        while not await asyncio.to_thread(is_so):
            pass


def _moves(port: int, direction: str) -> bool:
    """Returns whether a worker lends something, or reads something of another."""
    try:
        with urllib.request.urlopen(f"http://{LOCAL}:{port}/metrics", timeout=LONGEST_S) as answer:
            return dict(MOVES.findall(answer.read().decode()))[direction] != "0"
    except OSError:  # a drained worker has ended
        return False


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
        async with model_pool(args.model) as pool:
            streams = Streams(
                pool, num_streams=args.streams, context=args.context, num_tokens=args.tokens
            )
            if victim:
                found.append(await kill_in_move(pool, streams, name, victim))
            else:
                found.append(await fault(pool, streams, name, pause_s))
    return found


HEADER = (
    "| fault | worker lost, or moves ended | after s | longest gap of a stream s |"
    "\n|---|---|---|---|"
)


async def run(args: argparse.Namespace) -> None:
    print(HEADER)
    for name in args.faults:
        if name in ("drain", "prefill"):
            for victim in args.victims:
                found = await outcomes(args, name, victim=victim)
                print(row(f"{victim} killed, {name}", found), flush=True)
        elif name == "paused":
            for pause_s in args.pauses:
                found = await outcomes(args, name, pause_s=pause_s)
                print(row(f"worker paused for {pause_s:g} s", found), flush=True)
        else:
            print(row(f"worker {name}", await outcomes(args, name)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="of the workers; without one they are simulated")
    kinds = ("killed", "stopped", "paused", "drain", "prefill")
    parser.add_argument("--faults", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--pauses", type=float, nargs="+", default=[1.5, 2.0], help="seconds")
    victims = (OWNER, TAKER, SCHEDULER)
    parser.add_argument("--victims", nargs="+", choices=victims, default=victims)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--context", type=int, default=1024, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

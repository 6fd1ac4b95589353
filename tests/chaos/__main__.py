"""Faults at random for as long as asked, the history checked at the end.

    python -m tests.chaos [--minutes 3] [--seed N] [--clients 12]
    python -m tests.chaos --soak 30

Processes, signals and links are real, workers simulated. A soak spares router, scheduler and the
first worker, and looks for leaks in them. The seed decides on faults and requests; when they meet
is the machine's.
"""

import argparse
import asyncio
import collections
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from tests.chaos.checks.history import Fault, FaultKind, check
from tests.chaos.checks.leaks import MIN_SAMPLES, Sample, find_leaks
from tests.chaos.load import Load
from tests.chaos.nemesis import Nemesis
from tests.chaos.services import ChaosStack, chaos_stack
from tests.chaos.token_load import TokenLoad

SURVIVORS = ("router", "scheduler", "worker 0")
SAMPLES = 6 * MIN_SAMPLES
NUM_WORKERS = 3


async def run_faults(
    nemesis: Nemesis,
    names: list[str],
    *,
    ends: float,
    seed: int,
    audit: Callable[[], Awaitable[None]],
) -> None:
    """Does every fault once, in some order, and then again; audits answers behind each."""
    rng = random.Random(seed)
    for round_ in itertools.count():
        order = rng.sample(names, len(names))
        for name in order:
            if round_ and time.monotonic() > ends:
                return
            fault = await nemesis.do(name)
            print(f"{name}: a new request ended well after {fault.recovered_s:.1f} s", flush=True)
            await audit()
            await asyncio.sleep(rng.random())


async def watch(
    stack: ChaosStack,
    names: Iterable[str],
    samples: dict[str, list[Sample]],
    *,
    every_s: float,
) -> None:
    while True:
        for name in names:
            samples[name].append(await asyncio.to_thread(stack.services[name].sample))
        await asyncio.sleep(every_s)


async def run(options: argparse.Namespace, folder: Path) -> list[str]:
    """Returns what must not have happened."""
    minutes = options.soak or options.minutes
    samples = collections.defaultdict[str, list[Sample]](list)
    flags = (f"--recording-path={options.record}",) if options.record else ()
    async with chaos_stack(folder, num_workers=NUM_WORKERS, scheduler_flags=flags) as stack:
        load = TokenLoad(stack.address)
        await load.learn()
        nemesis = Nemesis(stack, load, seed=options.seed)
        names = nemesis.names_of(FaultKind.WORKER) if options.soak else nemesis.names
        asking = asyncio.create_task(load.run(num_clients=options.clients, seed=options.seed))
        every_s = 60 * minutes / SAMPLES
        watched = SURVIVORS if options.soak else ()
        watching = asyncio.create_task(watch(stack, watched, samples, every_s=every_s))
        ends = time.monotonic() + 60 * minutes

        async def audit() -> None:
            async with load.at_rest():
                await stack.until_audited()

        await run_faults(nemesis, names, ends=ends, seed=options.seed, audit=audit)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        load.finish()
        await asking
        await stack.until_free()
        wrong = check(load.records, undisturbed=load.undisturbed, faults=nemesis.faults)
        report(load, nemesis.faults)
        print(f"audits that were equal: {stack.num_audits}")
        if options.soak:
            wrong += find_leaks(samples)
            print(
                {name: (series[len(series) // 3], series[-1]) for name, series in samples.items()}
            )
        statuses = await stack.stop()
    wrong += stack.seen
    return wrong + [f"{name} exited with {status}" for name, status in statuses.items() if status]


def report(load: Load, faults: list[Fault]) -> None:
    codes = collections.Counter(str(record.code) for record in load.records)
    tokens = sum(len(ids) for record in load.records for ids in record.token_ids.values())
    computed, accepted = load.count_drafts()
    print(f"{len(load.records)} requests, {tokens} tokens: {dict(codes)}")
    print(f"{computed} drafts, {accepted} of them accepted")
    for name, times in sorted(_by_name(faults).items()):
        print(f"{name}: {len(times)} times, recovered within {max(times):.1f} s")


def _by_name(faults: list[Fault]) -> dict[str, list[float]]:
    times = collections.defaultdict[str, list[float]](list)
    for fault in faults:
        times[fault.name].append(fault.recovered_s)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--soak", type=float, default=0.0, help="minutes; looks for leaks")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--record", metavar="FILE", help="recording of the scheduler")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        wrong = asyncio.run(run(options, Path(folder)))
    print("\n".join(wrong[:50]) or "nothing was lost, repeated or different")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

"""A worker with streams is drained: how long the longest gap between a stream's tokens is.

    python -m benchmarks.drain [--profile h100 cpu] [--contexts 512 2048 8192] [--streams 32]
    python -m benchmarks.drain --model MODEL [--contexts 512 2048] [--streams 1]
        [--tensor-parallel-size 1] [--pipeline-parallel-size 1]

All streams run on one worker; another joins, and the first is drained: with migration, and without,
where a stream that is still there when the time to drain is over is computed anew on the other.
Without a model the real scheduler plans for workers in simulated time, whose steps cost what was
measured or what a data sheet says: see simulated_time/step_costs.py. With one all is real, each
worker has a core, where each of its ranks has one thread, and each stream's tokens are compared
with those of the same prompt that nothing disturbs afterwards, which is computed whole.
"""

import argparse
import asyncio
import itertools
import time
from statistics import median
from typing import NamedTuple

from benchmarks.harness.answers import Asked
from benchmarks.harness.model_pool import ModelAnswer, ModelPool, ModelWorker, model_pool
from benchmarks.harness.prompts import random_prompts
from benchmarks.simulated_time.simulated_pool import BLOCK_SIZE, SimulatedPool
from benchmarks.simulated_time.step_costs import PROFILES, StepCosts

LOOK_S = 0.05
"""Simulated seconds between two looks at how far the streams are."""
MOST_TOKENS = 1 << 14
CPU_BLOCKS = 1 << 12


class Gaps(NamedTuple):
    """Seconds between tokens of the streams, and how many were migrated."""

    usual: float
    """Median before the drain."""
    median: float
    """Median of the streams' longest gaps from the beginning of the drain on."""
    longest: float
    num_out: int
    duration: float
    """Seconds from the beginning of the drain until the worker has left."""


def measure(
    costs: StepCosts,
    *,
    context: int,
    num_streams: int = 32,
    within_s: float = 30.0,
    hands_over: bool = True,
) -> Gaps:
    """Drains a worker of which the streams have so many tokens, and do not end."""
    pool = SimulatedPool(
        costs,
        num_workers=1,
        max_num_seqs=num_streams,
        num_gpu_blocks=num_streams * (context + MOST_TOKENS) // BLOCK_SIZE,
        max_model_len=context + MOST_TOKENS,
        num_cpu_blocks=CPU_BLOCKS if hands_over else 0,
    )
    for _ in range(num_streams):
        pool.ask(Asked(context, MOST_TOKENS))
    answers = pool.clients.answers
    _run_until_each_has(pool, num_more_tokens=8)
    other, began_at = pool.join(), pool.clock.now
    usual = median(gap for answer in answers for gap in answer.gaps_s[-4:])
    pool.drain(pool.workers[0], within_s=within_s)
    while pool.workers[0].loop in pool.cluster.step_loops:
        pool.clock.run(until=pool.clock.now + LOOK_S)
    duration = pool.clock.now - began_at
    _run_until_each_has(pool, num_more_tokens=8)
    assert len(other.loop.scheduler.running) == num_streams, "a stream is lost"
    longest = [answer.longest_gap_s(since=began_at) for answer in answers]
    num_out = sum(group.num_migrations for group in other.loop.scheduler.running)
    return Gaps(usual, median(longest), max(longest), num_out, duration)


def _run_until_each_has(pool: SimulatedPool, *, num_more_tokens: int) -> None:
    """Lets time pass until each stream has so many more tokens."""
    wanted = [len(answer.token_times) + num_more_tokens for answer in pool.clients.answers]
    while any(
        len(answer.token_times) < number
        for answer, number in zip(pool.clients.answers, wanted, strict=True)
    ):
        pool.clock.run(until=pool.clock.now + LOOK_S)


async def measure_model(
    model: str,
    *,
    context: int,
    num_streams: int,
    hands_over: bool,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    kv_gib: float = 3,
) -> Gaps:
    """Does the same with two workers of a model. Raises AssertionError if a token is wrong."""
    flags = ["--max-num-seqs", str(max(2, num_streams)), "--kv-cache-memory", str(kv_gib)]
    flags += ["--tensor-parallel-size", str(tensor_parallel_size)]
    flags += ["--pipeline-parallel-size", str(pipeline_parallel_size)]
    if hands_over:
        flags += ["--drain-timeout", "120", "--swap-space", "1"]
    else:
        flags += ["--drain-timeout", "0", "--swap-space", "0"]
    async with model_pool(model) as pool:
        owner = await pool.join(*flags, core=0)
        served = await pool.model()
        prompts = random_prompts(vocab_size=served.vocab_size, num_tokens=context, seed=context)
        most_tokens = served.effective_max_model_len - context
        answers = [
            pool.ask(prompt, max_tokens=most_tokens)
            for prompt in itertools.islice(prompts, num_streams)
        ]
        await pool.join(*flags, core=1)
        await pool.until_more(answers, 8)
        gaps = await _drain(pool, owner, answers)
        await pool.check(answers)
    return gaps


async def _drain(pool: ModelPool, owner: ModelWorker, answers: list[ModelAnswer]) -> Gaps:
    """Drains a worker, reads on from the other one, and cancels the streams."""
    began_at = time.perf_counter()
    usual = median(gap for answer in answers for gap in answer.gaps_s[-4:])
    pool.drain(owner)
    await pool.until_left(owner)
    duration = time.perf_counter() - began_at
    await pool.until_more(answers, 8)
    await pool.cancel(answers)
    num_out = await pool.count_migrations(answers)
    longest = [answer.longest_gap_s(since=began_at) for answer in answers]
    return Gaps(usual, median(longest), max(longest), num_out, duration)


def row(context: int, gaps: Gaps, *, hands_over: bool) -> str:
    """Returns a row of the table."""
    cells = (f"{1e3 * seconds:.0f}" for seconds in gaps[:3])
    return (
        f"| {context} | {'migrated' if hands_over else 'computed anew'}"
        f" | {' | '.join(cells)} | {gaps.num_out} | {gaps.duration:.1f} |"
    )


HEADER = (
    "| tokens of each | what runs is | between tokens before ms | longest gap ms, median of"
    " the streams | of all | migrated | until it left s |\n|---|---|---|---|---|---|---|"
)


def run_simulated(args: argparse.Namespace) -> None:
    for profile in args.profile:
        costs = PROFILES[profile]
        print(f"\n{costs.name}: {args.streams} streams, {args.within:g} s to drain\n\n{HEADER}")
        for context, hands_over in itertools.product(args.contexts, (False, True)):
            gaps = measure(
                costs,
                context=context,
                num_streams=args.streams,
                within_s=args.within,
                hands_over=hands_over,
            )
            print(row(context, gaps, hands_over=hands_over), flush=True)


async def run_model(args: argparse.Namespace) -> None:
    print(f"\n{args.model}: {args.streams} streams\n\n{HEADER}")
    ways = {"anew": (False,), "over": (True,), "both": (False, True)}[args.ways]
    for context, hands_over in itertools.product(args.contexts, ways):
        gaps = await measure_model(
            args.model,
            context=context,
            num_streams=args.streams,
            hands_over=hands_over,
            tensor_parallel_size=args.tensor_parallel_size,
            pipeline_parallel_size=args.pipeline_parallel_size,
        )
        print(row(context, gaps, hands_over=hands_over), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--profile", nargs="+", choices=PROFILES, default=list(PROFILES))
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--within", type=float, default=30.0, help="simulated seconds to drain")
    parser.add_argument("--model", help="of real workers")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="with a model")
    parser.add_argument("--pipeline-parallel-size", type=int, default=1, help="with a model")
    parser.add_argument(
        "--ways", choices=("both", "anew", "over"), default="both", help="with a model"
    )
    args = parser.parse_args()
    if args.model:
        asyncio.run(run_model(args))
    else:
        run_simulated(args)


if __name__ == "__main__":
    main()

"""A worker with many streams is drained: how long the longest gap between a stream's tokens is.

    python -m benchmarks.drain [--profile h100 cpu] [--contexts 512 2048 8192] [--streams 32]

The real scheduler plans for workers in simulated time, whose steps cost what was measured or what a
data sheet says: see simulated_time/step_costs.py. All streams run on one worker; another
joins, and the first is drained: with handover, and without, where a stream that is still there when
the time to drain is over is computed anew on the other.
"""

import argparse
from statistics import median
from typing import NamedTuple

from benchmarks.simulated_time.simulated_pool import BLOCK_SIZE, Answer, Asked, SimulatedPool
from benchmarks.simulated_time.step_costs import PROFILES, StepCosts

LOOK_S = 0.05
"""Simulated seconds between two looks at how far the streams are."""
MOST_TOKENS = 1 << 14
CPU_BLOCKS = 1 << 12


class Gaps(NamedTuple):
    """Seconds between tokens of the streams, and how many were handed over."""

    usual: float
    """Median before the drain."""
    median: float
    """Median of the streams' longest gaps from the beginning of the drain on."""
    longest: float
    num_handed_over: int
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
    longest = [_longest_gap_s(answer, since=began_at) for answer in answers]
    handovers = other.loop.scheduler.handovers
    num_handed_over = handovers.num_taken_over if handovers is not None else 0
    return Gaps(usual, median(longest), max(longest), num_handed_over, duration)


def _run_until_each_has(pool: SimulatedPool, *, num_more_tokens: int) -> None:
    """Lets time pass until each stream has so many more tokens."""
    wanted = [len(answer.token_times) + num_more_tokens for answer in pool.clients.answers]
    while any(
        len(answer.token_times) < number
        for answer, number in zip(pool.clients.answers, wanted, strict=True)
    ):
        pool.clock.run(until=pool.clock.now + LOOK_S)


def _longest_gap_s(answer: Answer, *, since: float) -> float:
    ends = answer.token_times[1:]
    return max(gap for gap, end in zip(answer.gaps_s, ends, strict=True) if end >= since)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--profile", nargs="+", choices=PROFILES, default=list(PROFILES))
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--within", type=float, default=30.0, help="seconds to drain")
    args = parser.parse_args()
    for profile in args.profile:
        costs = PROFILES[profile]
        print(
            f"\n{costs.name}: {args.streams} streams, {args.within:g} s to drain\n\n"
            "| tokens of each | what runs is | between tokens before ms | longest gap ms, median of"
            " the streams | of all | handed over | until it left s |\n|---|---|---|---|---|---|---|"
        )
        for context in args.contexts:
            for hands_over in (False, True):
                gaps = measure(
                    costs,
                    context=context,
                    num_streams=args.streams,
                    within_s=args.within,
                    hands_over=hands_over,
                )
                cells = (f"{1e3 * seconds:.0f}" for seconds in gaps[:3])
                print(
                    f"| {context} | {'handed over' if hands_over else 'computed anew'}"
                    f" | {' | '.join(cells)} | {gaps.num_handed_over} | {gaps.duration:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

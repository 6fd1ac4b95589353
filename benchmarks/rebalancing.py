"""A second worker joins beside one with many streams: what it takes over, and what that is worth.

    python -m benchmarks.rebalancing [--profile h100 cpu] [--contexts 512 2048 8192] [--streams 64]

The real scheduler plans for workers in simulated time: see simulated_time/step_costs.py. The
streams run on one worker when another joins, which can read the first one's blocks, or cannot, so
that all streams stay where they are.
"""

import argparse
import statistics
from typing import NamedTuple

from benchmarks.harness.answers import Asked
from benchmarks.simulated_time.simulated_pool import BLOCK_SIZE, SimulatedPool
from benchmarks.simulated_time.step_costs import PROFILES, StepCosts

LOOK_S = 0.05
"""Simulated seconds between two looks at how far the streams are."""
NUM_BEFORE = 64
"""Tokens that each stream has when the other worker joins."""
CPU_BLOCKS = 1 << 12


class Figures(NamedTuple):
    """Times in seconds, from the other worker's joining on."""

    median: float
    """Between two tokens of a stream."""
    p99: float
    longest: float
    duration: float
    """Until the last stream has ended."""
    num_out: int
    num_most: int
    """Times that one stream was migrated, at most."""


def measure(
    costs: StepCosts,
    *,
    context: int,
    num_streams: int = 64,
    num_tokens: int = 1024,
    moves: bool = True,
) -> Figures:
    """Lets streams that all run on one worker end after another one has joined."""
    pool = SimulatedPool(
        costs,
        num_workers=1,
        max_num_seqs=num_streams,
        num_gpu_blocks=num_streams * (context + num_tokens + BLOCK_SIZE) // BLOCK_SIZE,
        max_model_len=context + num_tokens,
        num_cpu_blocks=CPU_BLOCKS if moves else 0,
    )
    for _ in range(num_streams):
        pool.ask(Asked(context, num_tokens))
    answers = pool.clients.answers
    while any(len(answer.token_times) < NUM_BEFORE for answer in answers):
        pool.clock.run(until=pool.clock.now + LOOK_S)
    groups = list(pool.workers[0].loop.scheduler.running)
    pool.join()
    joined_at = pool.clock.now
    while any(worker.loop.scheduler.has_unfinished for worker in pool.workers):
        pool.clock.run(until=pool.clock.now + LOOK_S)
    pool.check()
    gaps = sorted(
        gap
        for answer in answers
        for gap, end in zip(answer.gaps_s, answer.token_times[1:], strict=True)
        if end > joined_at
    )
    return Figures(
        median=statistics.median(gaps),
        p99=gaps[int(0.99 * len(gaps))],
        longest=gaps[-1],
        duration=max(answer.token_times[-1] for answer in answers) - joined_at,
        num_out=sum(group.num_migrations for group in groups),
        num_most=max(group.num_migrations for group in groups),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--profile", nargs="+", choices=PROFILES, default=list(PROFILES))
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of each stream")
    args = parser.parse_args()
    for profile in args.profile:
        costs = PROFILES[profile]
        print(
            f"\n{costs.name}: {args.streams} streams of {args.tokens} tokens\n\n"
            "| tokens of each prompt | streams | between tokens ms, median | p99 | longest"
            " | all ended s | migrated | one stream, times |\n|---|---|---|---|---|---|---|---|"
        )
        for context in args.contexts:
            for moves in (False, True):
                figures = measure(
                    costs,
                    context=context,
                    num_streams=args.streams,
                    num_tokens=args.tokens,
                    moves=moves,
                )
                cells = (f"{1e3 * seconds:.1f}" for seconds in figures[:3])
                print(
                    f"| {context} | {'rebalance' if moves else 'stay'} | {' | '.join(cells)}"
                    f" | {figures.duration:.1f} | {figures.num_out} | {figures.num_most} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

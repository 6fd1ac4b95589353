"""Measures a CUDA step's cost on the host: everything but the driver's calls, without a device.

    python -m benchmarks.host_time [--rounds 5] [--steps 40] [--cases "decode 256" "mixed"]
        [--profile]

A lease of the worker executes steps of a model with the shape of Llama-3-8B, two in flight, as a
scheduler sends them: 256 sequences that decode, alone or beside a new prompt of 512 tokens. Checks,
batches, sampling columns, plans, PyTorch's dispatch and the packing of kernels' arguments run; see
`no_device.py`. A figure is the mean of a round of steps, of the best of the rounds. The launches of
a recorded graph count as one call, which takes no time here. Run it as `taskset -c 0`.
"""

import argparse
import cProfile
import gc
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.host_time.no_device import (
    EmptyGraphs,
    driver_library,
    num_launches,
    without_copies_back,
)
from benchmarks.host_time.steps import CASES, make_runner, steps_of


def timed(step: Callable[[], None], num_steps: int) -> float:
    """Returns the mean milliseconds of a step."""
    gc.collect()
    start = time.perf_counter()
    for _ in range(num_steps):
        step()
    return (time.perf_counter() - start) / num_steps * 1e3


def profiled(step: Callable[[], None], num_steps: int) -> None:
    """Prints the functions that take longest."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(num_steps):
        step()
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(35)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = driver_library(Path(folder))
        print(f"{'':40}{'ms a step':>12}{'Triton launches':>18}")
        for is_eager in (False, True):
            runner = make_runner(Path(folder), EmptyGraphs(), enforce_eager=is_eager)
            without_copies_back(runner)
            for name in args.cases:
                steps: Iterator[None] = steps_of(runner, CASES[name])
                for _ in range(args.steps):  # compiles
                    next(steps)
                before = num_launches(library)
                best = min(
                    timed(lambda: next(steps), args.steps)  # noqa: B023
                    for _ in range(args.rounds)
                )
                launched = (num_launches(library) - before) / args.rounds / args.steps
                title = f"{name}{', enforce_eager' if is_eager else ''}"
                print(f"{title:40}{best:12.3f}{launched:18.0f}", flush=True)
                if args.profile:
                    profiled(lambda: next(steps), args.steps)  # noqa: B023


if __name__ == "__main__":
    main()

"""CPU of a token in two source trees: the control plane, serving, and `LLM`, in turns.

    python -m benchmarks.cpu_per_token BEFORE AFTER MODEL [--rounds 3]

Each round runs benchmarks.control_plane, benchmarks.serving and benchmarks.offline of both trees,
with the packages of that tree and the Python of this one, the next round in the opposite order.
Prints the medians of all columns of CPU, and the range of the ratios of a round. Machines drift,
also in CPU time: a ratio within its range of 1 says nothing.
"""

import argparse
import itertools
import math
import os
import statistics
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Cell = tuple[str, str, str]
"""Benchmark, row and column."""
NUM_KEYS = {"control_plane": 2, "serving": 1, "offline": 1}
"""Benchmarks, and the columns of their tables that say which load a row is."""
SHRUNK = {
    "control_plane": ["--sequences", "32", "--steps", "20"],
    "serving": ["--concurrency", "2", "--prompt-tokens", "16", "--max-tokens", "16"],
    "offline": ["--prompts", "2", "--prompt-tokens", "16", "--max-tokens", "16"],
}


def run(tree: Path, name: str, arguments: list[str]) -> dict[Cell, float]:
    """Runs a benchmark of a tree; returns what its table has of CPU."""
    settings = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    roots = settings["tool"]["pytest"]["ini_options"]["pythonpath"]
    path = os.pathsep.join(str(tree / root) for root in roots)
    printed = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return dict(read_table(name, printed))


def read_table(name: str, printed: str) -> Iterator[tuple[Cell, float]]:
    """Yields the columns of CPU of a Markdown table, whose first columns tell its rows apart."""
    lines = (line for line in printed.splitlines() if line.startswith("| "))
    header, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    for row in rows:
        for title, cell in zip(header, row, strict=True):
            if "CPU" in title:
                yield (name, " ".join(row[: NUM_KEYS[name]]), title), float(cell)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=NUM_KEYS, default=list(NUM_KEYS))
    parser.add_argument("--shrink", action="store_true", help="a moment of each, to try it")
    options = parser.parse_args()
    trees = [options.before.resolve(), options.after.resolve()]
    model = str(options.model.resolve())
    found: dict[Cell, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for number, name in itertools.product(range(options.rounds), options.only):
        arguments = [] if name == "control_plane" else [model]
        arguments += SHRUNK[name] if options.shrink else []
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            for cell, value in run(trees[side], name, arguments).items():
                found[cell][side].append(value)
    print("| benchmark | load | CPU | before | after | after / before |\n|---|---|---|---|---|---|")
    for cell, (before, after) in found.items():
        ratios = [new / old for old, new in zip(before, after, strict=True) if old] or [math.nan]
        medians = f"{statistics.median(before):.3f} | {statistics.median(after):.3f}"
        ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"| {' | '.join(cell)} | {medians} | {ratio} |")


if __name__ == "__main__":
    main()

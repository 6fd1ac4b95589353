"""Runs a benchmark of this folder and keeps what it prints, with all that it needs to be repeated.

    python -m benchmarks.record drain
    python -m benchmarks.record conversations DIR/smol --peers DIR

Writes benchmarks/results/NAME.md, with the machine, the commit, the date and the command.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.comparison.results import as_typed, machine, version

FOLDER = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("name", metavar="NAME", help="of a module of benchmarks/")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the module")
    options = parser.parse_args()
    command = ["-m", f"benchmarks.{options.name}", *options.arguments]
    measured, lines = version(), list[str]()
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        sys.exit(f"nothing is kept: benchmarks.{options.name} ended with {process.returncode}")
    date = time.strftime("%Y-%m-%d", time.gmtime())
    head = f"{machine()}; version {measured}, {date}: `{as_typed(command)}`\n\n"
    path = options.output / f"{options.name}.md"
    path.write_text(head + "".join(lines).strip() + "\n", encoding="utf-8")
    print(f"\n{path}")


if __name__ == "__main__":
    main()

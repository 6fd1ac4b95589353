"""Plants faults of the history again, one at a time, and says which of them their tests catch.

    python -m tests.planted_faults [NAME ...]

Works on a copy of the files that git knows or would add, in a temporary folder. Each test has to
pass before its fault is planted, and must not pass with it. Ends with status 1 if a fault is not
caught, or cannot be planted.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tests.planted_faults.table import ROOT, Fault, read_faults

LONGEST_S = 600.0
"""Bound of a test without a fault."""
EVENT_S = 30.0
"""Seconds that a test with a fault waits for an event, which may never come."""
HANGS_S, HANGS_TIMES = 60.0, 10.0
"""A test with a fault hangs after so many seconds, and as many times as it takes without."""
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IMPORTED: list[str] = PYPROJECT["tool"]["mypy"]["mypy_path"]
"""Folders of a checkout from which Python imports."""
SHOWN_LINES = 15


class End(Enum):
    """How a test has ended."""

    PASSED = 0
    FAILED = 1
    HUNG = 2
    NOT_RUN = 3
    """The test cannot be imported, or is not there."""


class Run(NamedTuple):
    """One run of a test."""

    end: End
    seconds: float
    output: str

    def __str__(self) -> str:
        return "\n".join(self.output.splitlines()[-SHOWN_LINES:])

    @property
    def failure(self) -> str:
        """First line of what pytest says of the failure."""
        found = re.search(r"^E +(.+)$", self.output, re.M)
        return "" if found is None else found[1][:100]


class Checkout:
    """A copy of this checkout, and what is known of tests without a fault."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._without: dict[str, Run] = {}
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():  # else it was removed, and git does not know yet
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def judge(self, fault: Fault) -> tuple[bool, str]:
        """Returns whether a fault is caught, and what has happened."""
        if (obstacle := fault.find_obstacle(self._folder)) is not None:
            return False, f"cannot be planted any more: {obstacle}"
        if fault.test not in self._without:
            self._without[fault.test] = self._run(fault.test, within_s=LONGEST_S)
        without = self._without[fault.test]
        if without.end is not End.PASSED:
            return False, f"its test does not pass without it:\n{without}"
        with fault.planted(self._folder):
            run = self._run(
                fault.test,
                within_s=HANGS_S + HANGS_TIMES * without.seconds,
                SIGNALBOX_TEST_EVENT_S=str(EVENT_S),
            )
        times = f"{run.seconds:.1f} s, {without.seconds:.1f} s without"
        match run.end:
            case End.PASSED:
                return False, f"NOT CAUGHT ({times})"
            case End.NOT_RUN:
                return False, f"cannot be planted any more: its test cannot run\n{run}"
            case End.HUNG:
                return True, f"caught, as its test hangs ({times})"
            case End.FAILED:
                return True, f"caught ({times}): {run.failure}"

    def _run(self, test: str, *, within_s: float, **variables: str) -> Run:
        """Runs a test in the copy, and ends whatever it has started."""
        path = os.pathsep.join(str(self._folder / one) for one in IMPORTED)
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", test],
            cwd=self._folder, env=os.environ | {"PYTHONPATH": path} | variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=within_s)
            ends = {0: End.PASSED, 1: End.FAILED}
            end = ends.get(process.returncode, End.NOT_RUN)
        except subprocess.TimeoutExpired:
            output, end = "", End.HUNG
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Run(end, time.monotonic() - begun, output)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted_faults")
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant; all without")
    names = parser.parse_args().names
    faults = {fault.name: fault for fault in read_faults()}
    if unknown := [name for name in names if name not in faults]:
        parser.error(f"no faults of these names: {', '.join(unknown)}")
    num_bad = 0
    chosen = [faults[name] for name in names] or list(faults.values())
    with tempfile.TemporaryDirectory(prefix="planted-faults-") as folder:
        checkout = Checkout(Path(folder))
        for fault in chosen:
            is_caught, told = checkout.judge(fault)
            num_bad += not is_caught
            print(f"{fault.name}: {told}\n    {fault.test}", flush=True)
    print(f"{len(chosen) - num_bad} of {len(chosen)} faults are caught")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())

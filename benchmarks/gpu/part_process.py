"""Runs a part as a process, so that nothing that it does to the device outlasts it."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.gpu.measures import PartResult, from_json

_ROOT = Path(__file__).parents[2]
_LEAST_S = 5.0


def run_part(
    name: str, flags: list[str], *, environment: Mapping[str, str], limit_s: float, log: Path
) -> PartResult:
    """Returns what a part has found, or why it has found nothing.

    Args:
        flags: of `benchmarks.gpu`, but the part's name.
        log: file for everything that the part prints.
    """
    if limit_s < _LEAST_S:
        return PartResult(name=name, measures=[], failure="no time is left")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.gpu", *flags, "--parts", name]
        command += ["--part-result", str(file)]
        start = time.monotonic()
        failure = run_process(command, environment=environment, limit_s=limit_s, log=log)
        seconds = time.monotonic() - start
        if not file.exists():
            return PartResult(name=name, measures=[], seconds=seconds, failure=failure)
        result = from_json(file.read_text(encoding="utf-8"))
    result.seconds = seconds
    return result


def run_process(
    command: list[str], *, environment: Mapping[str, str], limit_s: float, log: Path
) -> str:
    """Runs a command, and ends all that it has started; returns what went wrong, if anything."""
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=_ROOT,
            env={**os.environ, **environment},
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"not done within {limit_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return _last_line(log.read_text(encoding="utf-8", errors="replace")) or f"status {status}"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""

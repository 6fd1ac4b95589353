"""Runs trials in a process of their own, so that a hang or a crash costs a candidate, no worker.

One process makes them all, unless one fails: then the next has a new process, because the failure
may have left the device, or memory, as no other process has it. The process is spawned, since CUDA
does not survive a fork.
"""

import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

import torch

from signalbox_rpc.lifetime import parent
from signalbox_worker.device.trials.trial import Trial, Verdict

logger = logging.getLogger(__name__)

_PROGRAM = "signalbox_worker.device.trials.trial_process"
_START_S = 300.0
"""Seconds for the process to import PyTorch and to open the device."""
_END_S = 30.0
_OWN_FAULTS = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals that a process gets for what it did itself."""
_MAX_OUTPUT_BYTES = 1 << 20
"""Most of a failed trial's output that goes to the log, from its end."""


def run_trials(trials: Sequence[Trial], device: torch.device) -> list[Verdict]:
    """Returns the verdict of each; the whole output of one that fails goes to the log."""
    if not trials:
        return []
    names = ", ".join(trial.name for trial in trials)
    logger.info("trying %s on %s in another process, which may compile for minutes", names, device)
    verdicts: list[Verdict] = []
    while len(verdicts) < len(trials):
        with _started(device) as process:
            for trial in trials[len(verdicts) :]:
                verdicts.append(verdict := process.verdict(trial))
                if verdict.fault is not None:
                    logger.error("trial of %s: %s\n%s", trial.name, verdict.fault, process.output())
                    break
    return verdicts


class _NoAnswer(Exception):
    """The process has not answered; the message says why."""

    def __init__(self, reason: str, *, is_lasting: bool = False) -> None:
        """Args: is_lasting: False if it may come of what is around: a full machine, no memory."""
        super().__init__(reason)
        self.is_lasting = is_lasting


@contextmanager
def _started(device: torch.device) -> Iterator["_TrialProcess"]:
    """Ends the process at last, whatever it does, with what it has started, such as compilers."""
    command = [sys.executable, "-P", "-X", "faulthandler", "-m", parent.__name__, _PROGRAM]
    # It imports what this process would: no more of the current folder, and no less of others.
    path = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [*command, str(device)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            env=os.environ | {"PYTHONPATH": path, parent.PARENT_PID: str(os.getpid())},
            start_new_session=True,
        )
        try:
            yield _TrialProcess(process, printed)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> int | None:
    """Ends a process that may have ended; returns its status, unless the driver holds it."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            logger.warning("process %d of trials hangs in the driver", process.pid)
    return process.returncode


class _TrialProcess:
    """A process, and what it prints."""

    def __init__(self, process: "subprocess.Popen[bytes]", printed: IO[bytes]) -> None:
        self._process, self._printed = process, printed
        self._is_open = False

    def verdict(self, trial: Trial) -> Verdict:
        """Makes the trial; that it ends the process, or takes too long, is a fault."""
        try:
            if not self._is_open:
                opened = self._answer(_START_S)
                if opened.fault is not None:
                    return Verdict(fault=opened.fault, is_lasting=False)
                self._is_open = True
            self._ask(trial)
            return self._answer(trial.limit_s)
        except _NoAnswer as error:
            return Verdict(fault=str(error), is_lasting=self._is_open and error.is_lasting)

    def output(self) -> str:
        """Returns what it has printed so far."""
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - _MAX_OUTPUT_BYTES))
        return self._printed.read().decode(errors="replace")

    def _ask(self, trial: Trial) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(trial)).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._how_it_ended() from None

    def _answer(self, limit_s: float) -> Verdict:
        """Reads a line."""
        assert self._process.stdout is not None
        source, line = self._process.stdout.fileno(), b""
        until = time.monotonic() + limit_s
        while not line.endswith(b"\n"):
            if not select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
                raise _NoAnswer(f"it has not ended within {limit_s:g} s")
            if not (part := os.read(source, 1 << 16)):
                raise self._how_it_ended()
            line += part
        return Verdict(**json.loads(line))

    def _how_it_ended(self) -> _NoAnswer:
        code = _end(self._process)
        if code is None:
            return _NoAnswer("its process hangs as it ends")
        if code < 0:
            killer = signal.Signals(-code)
            reason = f"its process was killed by {killer.name}"
            return _NoAnswer(reason, is_lasting=killer in _OWN_FAULTS)
        return _NoAnswer(f"its process exited with status {code}", is_lasting=True)

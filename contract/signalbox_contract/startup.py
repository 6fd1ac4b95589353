"""Phases of a worker's start, progress within a phase, and their descriptions.

A starting worker reports them to its parent process and to the scheduler, which both show them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

_MIB = 1 << 20


class StartupPhase(IntEnum):
    """Numbered as in scheduler.proto."""

    IMPORT = 1
    FETCH = 2
    COMPILE = 3
    LOAD = 4
    PROFILE = 5


_WORDS = {
    StartupPhase.IMPORT: "importing PyTorch",
    StartupPhase.FETCH: "fetching the model",
    StartupPhase.COMPILE: "compiling the CPU kernels",
    StartupPhase.LOAD: "loading the weights",
    StartupPhase.PROFILE: "profiling the model",
}


@dataclass(frozen=True, slots=True)
class StartupProgress:
    """Progress of a phase.

    Args:
        num_done, num_total: bytes (FETCH), source files (COMPILE) or tensors (LOAD); a total of 0
            means unknown.

    Raises ValueError for impossible counts.
    """

    phase: StartupPhase
    num_done: int = 0
    num_total: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.num_done <= max(self.num_total, 0):
            raise ValueError(f"{self.num_done} of {self.num_total} cannot be done")

    def __str__(self) -> str:
        words = _WORDS[self.phase]
        if not self.num_total:
            return words
        match self.phase:
            case StartupPhase.FETCH:
                return f"{words}, {self.num_done // _MIB} of {self.num_total // _MIB} MiB"
            case StartupPhase.COMPILE:
                return f"{words}, {self.num_done} of {self.num_total}"
        return f"{words}, {100 * self.num_done // self.num_total} %"


ReportProgress = Callable[[StartupProgress], None]
"""Called on any thread, after each piece of work; must not block."""


def ignore_progress(_: StartupProgress) -> None:
    """Does nothing: the callback of a start whose progress is not shown."""

"""Compiles structured outputs in this process, one at a time, while steps run."""

from concurrent.futures import Future, wait
from typing import Any

from gpu_worker.sampling.compiled_grammar import fault_of
from scheduler_svc.planning.worker_grammars import Preparation
from scheduler_svc.scheduler import Scheduler
from signalbox.llm.in_process.local_worker import LocalWorker


class LocalGrammars:
    """Compiles for the scheduler of this process, as `Engine` does over gRPC."""

    def __init__(self, worker: LocalWorker, scheduler: Scheduler) -> None:
        self._worker = worker
        self._scheduler = scheduler
        self._preparation: Preparation | None = None
        self.compiling: Future[Any] | None = None
        """The compilation that is running, or whose result has not been taken."""

    def begin(self) -> None:
        """Starts the compilation that the last plan has asked for, if any."""
        preparation = self._scheduler.grammars.pop_preparation()
        if preparation is not None:
            self._preparation = preparation
            self.compiling = self._worker.prepare(preparation)

    def wait(self) -> None:
        """Waits until the running compilation has ended."""
        if self.compiling is not None:
            wait([self.compiling])

    def take(self) -> None:
        """Reports a compiled grammar to the scheduler, or its failure."""
        if self.compiling is None or self._preparation is None or not self.compiling.done():
            return
        constraint, fault = self._preparation.constraint, fault_of(self.compiling)
        self._preparation = self.compiling = None
        if fault is not None:
            self._worker.forget_grammars([constraint])
        self._scheduler.grammars.prepared(constraint, fault=fault or "")

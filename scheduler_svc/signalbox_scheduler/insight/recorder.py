"""Recorders, which keep the inputs of a scheduler so that decisions can be repeated.

The scheduler is a pure function of these records and their times. While it is recorded, its
clock stands still between them (`clock`), so that a replay reads the same times. These classes
record nothing; `service/replay/recording_codec.py` has those that write a file.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from signalbox_contract.model import Adapter, ModelInfo, WorkerCapacity
from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.queue.grammar_queue import Constraint


class RouterRecorder:
    """Records what one router says. Called before the cluster is told."""

    def said(self, message: Any, now: float) -> None: ...

    def left(self, now: float) -> None: ...


class WorkerRecorder:
    """Records one lease. Called before the scheduler is told; `sent` after it has planned."""

    def describe(
        self,
        *,
        address: str,
        epoch: int,
        model: ModelInfo,
        capacity: WorkerCapacity,
        certified_name: str,
        role: WorkerRole,
    ) -> None:
        """Says what `joined` will write."""

    def joined(self, now: float) -> None: ...

    def drains(self, now: float) -> None: ...

    def left(self, now: float) -> None: ...

    def planned(self, now: float) -> None: ...

    def sent(self, message: Any) -> None: ...

    def received(self, message: Any) -> None:
        """Says what `answered` will write."""

    def answered(self, now: float) -> None: ...

    def prepared(self, constraint: Constraint, fault: str, now: float) -> None: ...


class InputRecorder:
    """Records everything, in order."""

    @property
    def clock(self) -> Callable[[], float]:
        return time.monotonic

    def router(self) -> RouterRecorder:
        return RouterRecorder()

    def worker(self) -> WorkerRecorder:
        return WorkerRecorder()

    def tick(self, now: float) -> None: ...

    def adapters_changed(self, adapters: Iterable[Adapter], now: float) -> None: ...

    def cache_cleared(self, tenant: str | None, now: float) -> None: ...

    def close(self) -> None: ...


class _Unrecorded(InputRecorder, RouterRecorder, WorkerRecorder):
    """Records nothing, whatever it is the recorder of."""


UNRECORDED = _Unrecorded()

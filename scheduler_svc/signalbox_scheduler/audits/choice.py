"""Chooses the requests that are audited, and the worker that audits each of them.

A request may be chosen only while fewer than `MAX_RECORDS` others are chosen and not yet audited.
So the number of audits follows the time that they may take, and a scheduler whose workers never
idle soon chooses no more. The choice is random, because a fault may occur at regular intervals.
"""

import logging
from collections.abc import Callable
from random import Random

from signalbox_scheduler.audits.finding import AuditLog, DropReason
from signalbox_scheduler.audits.record import AuditRecord, may_be_audited, record_of
from signalbox_scheduler.audits.worker_audits import WorkerAudits
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.planning.step_audits import StepAudits
from signalbox_scheduler.requests.drawn_logits import DrawnLogits
from signalbox_scheduler.requests.sequence_group import SequenceGroup

logger = logging.getLogger(__name__)

MAX_RECORDS = 8
"""Most requests that are chosen and not yet audited, running ones included."""
MAX_AGE_S = 600.0
"""Seconds after which an answer is no longer audited."""
CHANCE = 0.5
"""Probability that a request is chosen if one may be."""


class Audits:
    """Audits nothing; the base class of `SampledAudits`."""

    def __init__(self) -> None:
        self.log = AuditLog()

    def join(self, worker: SchedulerState, wake: Callable[[], None]) -> None:
        """Adds a worker; `wake` makes its driver plan."""

    def leave(self, worker: SchedulerState) -> None:
        """Removes a worker that is gone."""

    def choose(self, group: SequenceGroup, now: float) -> None:
        """Decides whether a request that arrives is audited at its end."""

    def ended(self, group: SequenceGroup, now: float) -> None:
        """Takes a request that has ended."""


class SampledAudits(Audits):
    """Audits some requests.

    Args:
        share: part of each worker's time that audits may take.
        seed: of the random choice, so that a replay chooses the same requests.
    """

    def __init__(self, share: float, *, seed: int = 0) -> None:
        super().__init__()
        self._share = share
        self._random = Random(seed)
        self._num_live = 0
        """Chosen requests that have not ended."""
        self._records: list[AuditRecord] = []
        """Answers that wait for their audits, the oldest first."""
        self._workers: dict[SchedulerState, WorkerAudits] = {}

    def join(self, worker: SchedulerState, wake: Callable[[], None]) -> None:
        if not worker.config.arithmetic:
            logger.info(
                "no audits by the worker at %s: its bits depend on what else it computes",
                worker.config.identity.address,
            )
            return
        audits = WorkerAudits(worker, self, share=self._share, wake=wake)
        worker.audits = self._workers[worker] = audits

    def leave(self, worker: SchedulerState) -> None:
        if (audits := self._workers.pop(worker, None)) is not None:
            audits.close()
            worker.audits = StepAudits()  # so that they do not keep each other in memory

    def choose(self, group: SequenceGroup, now: float) -> None:
        self._drop_late(now)
        num_chosen = self._num_live + len(self._records)
        if not self._workers or num_chosen >= MAX_RECORDS or not may_be_audited(group):
            return
        if self._random.random() < CHANCE:
            group.logits = DrawnLogits()
            self._num_live += 1
            self.log.num_chosen += 1

    def ended(self, group: SequenceGroup, now: float) -> None:
        logits, group.logits = group.logits, None
        if logits is None:
            return
        self._num_live -= 1
        record = record_of(group, logits, now)
        if isinstance(record, DropReason):
            self.log.drop(record)
            return
        self._records.append(record)
        for worker in self._workers.values():
            worker.wake()

    def find(self, worker: WorkerAudits, now: float) -> AuditRecord | None:
        """Returns the oldest answer that a worker is to audit.

        Workers that did not compute the answer come first, since a worker repeats its own permanent
        faults.
        """
        self._drop_late(now)
        for record in self._records:
            takers = [one for one in self._workers.values() if one.takes(record, now)]
            others = [one for one in takers if one.name not in record.workers]
            if worker in (others or takers):
                return record
        return None

    def take(self, record: AuditRecord) -> None:
        """Removes an answer, whose audit begins."""
        self._records.remove(record)

    def _drop_late(self, now: float) -> None:
        while self._records and now - self._records[0].ended_at > MAX_AGE_S:
            self._records.pop(0)
            self.log.drop(DropReason.LATE)

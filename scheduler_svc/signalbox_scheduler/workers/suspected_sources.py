"""Takes the suspected sources of findings out of use: a store, blocks of a worker, or a worker.

After each finding, the workers that computed the answer forget their cached prefixes, since one of
these may be wrong. The second finding of one source within ten minutes takes the source out of use:

- a store is not read until it is cleared,
- other workers read no blocks of a worker, and do not take over its requests, until it joins again,
- a worker drains if another one still serves. Each finding counts as a failure of the worker, so
  that it may join again after a pause (quarantine.py).

If another worker computed the audit, either of the two may be wrong. The one with more findings is
suspected; if both have as many, the one that computed the answer.

A worker that has left or drains already is not taken out of use again; its findings still count if
it joins again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum

from signalbox_rpc.metrics.sample import Sample, counters
from signalbox_scheduler.audits.finding import AuditFinding, AuditSource
from signalbox_scheduler.transfers.peer_registry import PeerRegistry
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.quarantine import FORGET_S, WorkerRecords
from signalbox_scheduler.workers.unfinished_clears import SHARED
from signalbox_scheduler.workers.worker_pool import StepLoops

logger = logging.getLogger(__name__)

ENOUGH = 2
"""Findings of a source within `FORGET_S` that take it out of use; a single bit flip may not."""


class Suspect(StrEnum):
    """Kind of a source that may be taken out of use."""

    STORE = "store"
    PEER = "peer"
    """A worker whose blocks others read."""
    WORKER = "worker"


class SuspectedSources:
    """Counts recent findings by their sources.

    Args:
        drain: lets a worker finish what it has, and leave.
    """

    def __init__(
        self,
        *,
        step_loops: StepLoops,
        peers: PeerRegistry,
        worker_records: WorkerRecords,
        drain: Callable[[StepLoop], None],
        clock: Callable[[], float],
    ) -> None:
        self._step_loops = step_loops
        self._peers = peers
        self._worker_records = worker_records
        self._drain = drain
        self._clock = clock
        self._times: dict[tuple[Suspect, str], list[float]] = {}
        """Times of the findings of each source that are not forgotten."""
        self._num_avoided = Counter[Suspect]()

    def samples(self) -> Iterator[Sample]:
        yield from counters(
            "audit_sources_avoided",
            "Stores that are no longer read, workers whose blocks are no longer read, and workers"
            " that were drained, because of findings of audits.",
            {str(one): self._num_avoided[one] for one in Suspect},
            by="source",
        )

    def take(self, finding: AuditFinding) -> None:
        """Counts a finding, and takes its source out of use if it is the second one."""
        for loop in self._loops_of(*finding.answered_by):
            loop.scheduler.forget_prefixes()
        if finding.source is AuditSource.STORE:
            self._suspect_store(finding)
        elif finding.source is AuditSource.PEER:
            self._suspect_peer(finding.suspect)
        elif finding.source is AuditSource.MIGRATION:
            self._suspect_peer(_left(finding))
        else:
            self._suspect_worker(finding)

    def _loops_of(self, *workers: str) -> list[StepLoop]:
        return [loop for loop in self._step_loops if loop.worker_name in workers]

    def _count(self, suspect: Suspect, name: str) -> int:
        """Counts a finding; returns how many of its source are not forgotten."""
        now, key = self._clock(), (suspect, name)
        recent = {
            one: [at for at in times if now - at < FORGET_S] for one, times in self._times.items()
        }
        self._times = {one: times for one, times in recent.items() if times}
        self._times.setdefault(key, []).append(now)
        return len(self._times[key])

    def _suspect_store(self, finding: AuditFinding) -> None:
        """Suspects the store that workers share, or that of each worker that answered."""
        readers = {name: self._loops_of(name) for name in finding.answered_by}
        if finding.suspect == SHARED:
            readers = {SHARED: list(self._step_loops)}
        for name, loops in readers.items():
            if self._count(Suspect.STORE, name) < ENOUGH or not loops:
                continue
            for loop in loops:
                loop.scheduler.state.connector.avoid_store()
                loop.scheduler.forget_prefixes()
            self._avoided(Suspect.STORE, name, "it is not read until `signalbox cache clear`")

    def _suspect_peer(self, worker: str) -> None:
        if self._count(Suspect.PEER, worker) < ENOUGH or not self._loops_of(worker):
            return
        self._peers.avoid(worker)
        for loop in self._step_loops:
            loop.scheduler.forget_prefixes()
        self._avoided(Suspect.PEER, worker, "others do not read its blocks until it joins again")

    def _suspect_worker(self, finding: AuditFinding) -> None:
        both = dict.fromkeys((finding.suspect, finding.audited_by))
        counts = {name: self._count(Suspect.WORKER, name) for name in both}
        worker = max(counts, key=lambda name: counts[name])  # of equals the first
        self._worker_records.count(self._worker_records.loss_of(worker))
        if counts[worker] < ENOUGH:
            return
        loops = [loop for loop in self._loops_of(worker) if not loop.is_draining]
        if not loops:
            return
        if all(loop.is_draining or loop in loops for loop in self._step_loops):
            _tell(Suspect.WORKER, worker, "it still serves, as the only worker: restart it")
            return
        for loop in loops:
            self._drain(loop)
        self._avoided(Suspect.WORKER, worker, "it drains")

    def _avoided(self, suspect: Suspect, name: str, consequence: str) -> None:
        """Records that a source is out of use; later findings of it are counted from zero."""
        del self._times[suspect, name]
        self._num_avoided[suspect] += 1
        _tell(suspect, name, consequence)


def _left(finding: AuditFinding) -> str:
    """Returns the worker that an answer left when it migrated to the suspect."""
    others = (one for one in reversed(finding.answered_by) if one != finding.suspect)
    return next(others, finding.suspect)


def _tell(suspect: Suspect, name: str, consequence: str) -> None:
    logger.error(
        "audits suspect the %(source)s of %(name)s after %(findings)d findings: %(consequence)s",
        {"source": suspect, "name": name, "findings": ENOUGH, "consequence": consequence},
    )

"""Decides after losses whether workers or requests were at fault; see suspicion.py.

A suspect that passes the position of the loss is cleared, and where it was lost alone the worker
was at fault: that is put on record. A suspect that is lost too often, or that a worker fails to
compute alone, was the cause itself: the first loss is taken off its worker's record.
"""

from collections.abc import Collection

from signalbox_contract.errors import Code
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.suspicion import Suspicion
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_scheduler.workers.quarantine import WorkerRecords


def record_loss(records: WorkerRecords, scheduler: Scheduler) -> None:
    """Counts the loss of a worker against it, unless one suspect was alone in its steps."""
    loss, inflight = records.loss_of(scheduler.worker_name), scheduler.in_flight
    if not inflight or not all(plan.is_alone for plan in inflight):
        records.count(loss)
    for group, position in _positions_in_flight(scheduler).items():
        group.suspect(position).losses.append(loss)
        group.num_lost_workers += 1


def record_failed_step(records: WorkerRecords, groups: Collection[SequenceGroup]) -> None:
    """Counts a failed step against its worker, unless it was that of a suspect, and against the
    requests that have lost their states in it."""
    (worker,) = {group.timeline.worker for group in groups}
    loss = records.loss_of(worker)._replace(is_of_step=True)
    suspicions = [group.suspicion for group in groups if group.suspicion is not None]
    if not any(suspicion.losses for suspicion in suspicions):
        records.count(loss)
    for suspicion in suspicions:
        suspicion.losses.append(loss)


def _positions_in_flight(scheduler: Scheduler) -> dict[SequenceGroup, int]:
    """Returns how far the furthest sequence of each group in flight would have been, in tokens."""
    positions: dict[SequenceGroup, int] = {}
    for plan in scheduler.in_flight:
        for seq in plan.seqs:
            if scheduler.holds(seq.group):  # else it has ended
                counters = scheduler.counters(seq)
                planned = counters.num_computed_tokens + counters.num_inflight_tokens
                positions[seq.group] = max(planned, positions.get(seq.group, 0))
    return positions


def clear(records: WorkerRecords, suspicion: Suspicion) -> None:
    """Puts the losses at which a request was alone, and not the cause, on the workers' record."""
    for loss in suspicion.losses[1:]:
        records.count(loss)


def judge(records: WorkerRecords, group: SequenceGroup) -> None:
    """Judges a suspect that has ended; one that was aborted or out of time has proven nothing."""
    suspicion = group.pop_suspicion()
    if suspicion is None:
        return
    if group.failure is None:
        clear(records, suspicion)
    elif group.failure.code is Code.INTERNAL:
        for loss in suspicion.losses[:1]:
            records.forgive(loss)


def shun(group: SequenceGroup, takers: set[str]) -> None:
    """Keeps a suspect from the workers that were lost with it, if another one takes it.

    Args:
        takers: names of the workers that take it.
    """
    if group.suspicion is not None:
        losses = group.suspicion.losses
        lost_on = frozenset(loss.worker for loss in losses if not loss.is_of_step)
        group.suspicion.shunned = lost_on if takers - lost_on else frozenset()

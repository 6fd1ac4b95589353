"""Timeline of one request: a short list of events that explains why it was slow.

Beside it are the times at which its phases began, which the router gets at the end.

Events are changes: queued, scheduled, a chunk of prefill, preempted. None is recorded for a token
that is decoded, so that a step costs the same with and without timelines. Times are the
scheduler's clock, passed in.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from signalbox_contract.sections.store_moves import MoveResult
from signalbox_contract.updates import Timings
from signalbox_scheduler.requests.stage_use import NO_STAGES, StageAccount, StageUse
from signalbox_scheduler.requests.wait_accounting import (
    Account,
    Wait,
    WaitLedger,
    WaitReason,
    merged,
)

KEPT_FIRST = 64
KEPT_LAST = 192
"""Events kept from the start and the end of a timeline; those between are dropped and counted."""


class EventKind(Enum):
    """Kind of an event, named as in explain.proto."""

    QUEUED = auto()
    SCHEDULED = auto()
    PREFILL = auto()
    FIRST_TOKEN = auto()
    FORKED = auto()
    PREEMPTED = auto()
    RESUMED = auto()
    MOVED = auto()
    SEQUENCE_FINISHED = auto()
    ENDED = auto()
    SUSPECTED = auto()
    CLEARED = auto()
    POOLED = auto()
    FETCHED = auto()
    STORED = auto()
    MIGRATED = auto()
    DEAR_MASKS = auto()
    AUDITED = auto()


class TimelineEvent(NamedTuple):
    """One thing that happened; only the numbers that belong to its kind are set."""

    kind: EventKind
    at: float
    worker: str = ""
    step_id: int = 0
    num_tokens: int = 0
    num_cached_tokens: int = 0
    num_blocks: int = 0
    """Moved between GPU and CPU, or to or from a store or another worker, or given up."""
    num_bytes: int = 0
    seconds: float = 0.0
    """Time that a move to or from a store, or from another worker, took, or that a mask takes."""
    source: str = ""
    """Address of the worker from which blocks came; empty of a store."""
    store: str = ""
    """Kind of the store from or to which blocks went; empty of another worker."""
    num_sequences: int = 0
    branch: int = 0
    num_ahead: int = 0
    num_waiting: int = 0
    is_swap: bool = False
    other_request_id: str = ""
    """Request for which it was preempted; itself if no group behind it could yield."""
    detail: str = ""
    waits: tuple[Wait, ...] = ()


@dataclass(slots=True)
class Timeline:
    """The events of one request, in order."""

    events: list[TimelineEvent] = field(default_factory=list)
    num_dropped: int = 0
    worker: str = ""
    """Worker that has the request or had it last; empty if that worker has left."""
    _waits_from: Account = ()
    """The queue's account when the request began to wait there; empty outside the queue."""
    _waited: tuple[Wait, ...] = ()
    """Waits before that, outside the queue and before it left the queue to load."""
    _loading_since: float | None = None
    _stages: StageAccount = NO_STAGES
    """Account of the worker."""
    _stages_from: StageUse = field(default_factory=NO_STAGES.use)
    """The account when the worker took the request."""

    def add(self, kind: EventKind, now: float, **numbers: Any) -> None:
        """Records an event at the worker where the request is."""
        if len(self.events) >= KEPT_FIRST + KEPT_LAST:
            del self.events[KEPT_FIRST]
            self.num_dropped += 1
        self.events.append(TimelineEvent(kind, now, self.worker, **numbers))

    def queued(self, now: float, *, num_ahead: int, num_waiting: int, ledger: WaitLedger) -> None:
        """Records that the request waits in the admission queue, behind so many of so many."""
        self.wait(ledger, now)
        self.add(EventKind.QUEUED, now, num_ahead=num_ahead, num_waiting=num_waiting)

    def wait(self, ledger: WaitLedger, now: float) -> None:
        """Begins to count what the request waits for in the admission queue."""
        self._waits_from = ledger.account(now)
        self._waited, self._loading_since = (), None

    def loading(self, ledger: WaitLedger, now: float) -> None:
        """Records that the request leaves the queue, and waits for its prefix."""
        self._waited, self._waits_from = self.waits(ledger, now), ()
        self._loading_since = now

    def loaded(self, ledger: WaitLedger, now: float) -> None:
        """Records that it is back in the queue."""
        self._waited, self._loading_since = self.waits(ledger, now), None
        self._waits_from = ledger.account(now)

    def scheduled(
        self,
        ledger: WaitLedger,
        now: float,
        *,
        worker: str,
        stages: StageAccount,
        step_id: int,
        resumes: bool,
    ) -> None:
        """Records that a worker took the request from the admission queue, and why not earlier."""
        waits, self._waits_from, self._waited = self.waits(ledger, now), (), ()
        self.worker = worker
        self._follow(stages)
        kind = EventKind.RESUMED if resumes else EventKind.SCHEDULED
        self.add(kind, now, step_id=step_id, waits=waits)

    @property
    def has_resumed(self) -> bool:
        """True if workers have admitted the request more than once."""
        return any(event.kind is EventKind.RESUMED for event in self.events)

    def moved(self, now: float, *, is_lost: bool) -> None:
        """Records that the request's worker has gone, and whether it had announced that."""
        self.add(EventKind.MOVED, now, detail="lost" if is_lost else "drained")
        self.worker = ""
        self._follow(NO_STAGES)

    def migrated(self, now: float, *, worker: str, stages: StageAccount, **numbers: Any) -> None:
        """Records that the request runs on another worker from now on, which has its blocks."""
        self.worker = worker
        self._follow(stages)
        self.add(EventKind.MIGRATED, now, **numbers)

    def moved_blocks(
        self, kind: EventKind, now: float, result: MoveResult, *, source: str = "", store: str = ""
    ) -> None:
        """Records that a move of blocks from or to a worker's store has ended.

        Args:
            source: address of the worker from which they came instead.
            store: kind of the store; empty if they came from a worker.
        """
        self.add(
            kind,
            now,
            num_blocks=result.num_blocks,
            num_bytes=result.num_bytes,
            seconds=result.duration_ns / 1e9,
            source=source,
            store=store,
            detail=result.failed,
        )

    def _follow(self, stages: StageAccount) -> None:
        if self._stages is not stages:
            self._stages, self._stages_from = stages, stages.use()

    def stage_use(self) -> StageUse:
        """Returns what the stages of the worker have computed since it took the request."""
        return self._stages.use().since(self._stages_from)

    def waits(self, ledger: WaitLedger, now: float) -> tuple[Wait, ...]:
        """Returns what a request that is queued, or loads, has waited for so far."""
        latest: tuple[Wait, ...] = ()
        if self._waits_from:
            latest = ledger.since(self._waits_from, now)
        elif self._loading_since is not None:
            latest = (Wait(WaitReason.LOADING, now - self._loading_since, 0),)
        return merged(self._waited, latest) if self._waited else latest


@dataclass(slots=True, kw_only=True)
class GroupTimes:
    """Times of the phases of a group, in seconds of the scheduler's clock."""

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    preempted_at: float | None = None
    """Since when the group has been out; None while it is not preempted."""
    preempted_s: float = 0.0
    """Seconds spent preempted, without a preemption that still lasts."""

    def resume(self, now: float) -> None:
        """Records that the group begins to run, or runs again."""
        if self.first_scheduled is None:
            self.first_scheduled = now
        if self.preempted_at is not None:
            self.preempted_s += now - self.preempted_at
            self.preempted_at = None

    def total_preempted(self, now: float) -> float:
        """Returns the seconds spent preempted so far."""
        return self.preempted_s + (0.0 if self.preempted_at is None else now - self.preempted_at)

    def timings(self, now: float) -> Timings:
        """Returns the durations that the router is sent at the request's end."""
        scheduled = now if self.first_scheduled is None else self.first_scheduled
        first_token = now if self.first_token is None else self.first_token
        last_token = first_token if self.last_token is None else self.last_token
        return Timings(
            queued_ns=_nanoseconds(scheduled - self.arrival),
            prefill_ns=_nanoseconds(first_token - scheduled),
            decode_ns=_nanoseconds(last_token - first_token),
            preempted_ns=_nanoseconds(self.total_preempted(now)),
        )

    def phases(self, now: float) -> tuple[float, float, float]:
        """Returns the seconds until first scheduled, until the first token, and since then."""
        scheduled = now if self.first_scheduled is None else self.first_scheduled
        first_token = now if self.first_token is None else self.first_token
        return scheduled - self.arrival, first_token - scheduled, now - first_token


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))

"""The requests of this scheduler from arrival to end: added, stopped, aborted, out of time.

Everything here runs on the event loop and returns at once. Routers are told through their
sessions, one message for each step.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

from signalbox_contract.errors import Code
from signalbox_contract.model import ModelInfo
from signalbox_contract.updates import AdmittedRequest, FinishReason, RequestFailure, RequestUpdates
from signalbox_contract.wording import counted
from signalbox_rpc.metrics.sample import Sample, counters, gauge, gauges
from signalbox_scheduler.audits.choice import Audits
from signalbox_scheduler.audits.finding import AuditEnd
from signalbox_scheduler.config import AdmissionBounds
from signalbox_scheduler.insight import request_spans
from signalbox_scheduler.insight.explain import Explanation, History, explain
from signalbox_scheduler.insight.history_words import audit_event
from signalbox_scheduler.insight.sessions import ClientSessions
from signalbox_scheduler.insight.stats import RequestStats
from signalbox_scheduler.queue.admission_checks import Entry
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.placement_deadlines import PlacementDeadlines
from signalbox_scheduler.requests.failures import (
    breaks_workers,
    no_room_left,
    no_such_adapter,
    no_worker_came,
    policy_fails,
)
from signalbox_scheduler.requests.live_requests import LiveRequests
from signalbox_scheduler.requests.open_spans import RequestTrace
from signalbox_scheduler.requests.sequence_group import BeamGroup, SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.results.step_outcome import StepOutcome, finished_request, router_updates
from signalbox_scheduler.workers.loss_attribution import clear, judge, record_failed_step, shun
from signalbox_scheduler.workers.quarantine import WorkerRecords
from signalbox_scheduler.workers.worker_pool import StepLoops

logger = logging.getLogger(__name__)


class RequestLifecycle:
    """The requests that live, wherever they wait or run."""

    def __init__(
        self,
        *,
        admission: AdmissionQueue,
        step_loops: StepLoops,
        bounds: AdmissionBounds,
        worker_wait_s: float,
        worker_records: WorkerRecords,
        explain_history: int,
        audits: Audits,
        clock: Callable[[], float],
    ) -> None:
        self.model: ModelInfo | None = None
        """Model that the workers serve; None until the first has joined."""
        self.history = History(explain_history)
        self.stats = RequestStats()
        self.sessions = ClientSessions()
        self.num_refused: Counter[str] = Counter()
        self._admission = admission
        self._step_loops = step_loops
        self._worker_records = worker_records
        self._audits = audits
        self._clock = clock
        self._live = LiveRequests()
        self._placement_deadlines = PlacementDeadlines(worker_wait_s)
        self._entry = Entry(admission=admission, live=self._live, workers=step_loops, bounds=bounds)

    def __len__(self) -> int:
        return len(self._live)

    async def wait_for_any(self) -> None:
        await self._live.exist.wait()

    @property
    def has_deadlines(self) -> bool:
        """True if `expire` may have something to do."""
        return bool(self._live.deadlines or self._placement_deadlines.until)

    @property
    def num_stranded(self) -> int:
        """Requests of the admission queue that no worker takes at the moment."""
        return len(self._placement_deadlines)

    def samples(self) -> Iterator[Sample]:
        num_waiting = len(self._admission)
        yield gauge("num_requests_waiting", "Requests in the admission queue.", num_waiting)
        yield from gauges(
            "num_requests_waiting_by_reason",
            "Requests in the admission queue: for room, or for a worker that takes them.",
            {"capacity": num_waiting - self.num_stranded, "deferred": self.num_stranded},
            by="reason",
        )
        # A series that begins with a first refusal would hide it: there is no increase to alert on.
        refused = {Code.RESOURCE_EXHAUSTED.name: 0, **self.num_refused}
        yield from counters(
            "admission_rejections",
            "Requests that were refused on arrival, by status code.",
            {code.lower(): number for code, number in refused.items()},
            by="reason",
        )
        yield from self.stats.samples()

    def add(self, group: SequenceGroup) -> bool:
        """Queues a request; one that is refused ends at once, and False is returned."""
        self._end_earlier_attempt(group)
        most_tokens = group.max_tokens
        failure = self._entry.refusal(group, self.model, self._clock())
        if failure is not None:
            group.fail(failure)
            self.num_refused[failure.code.name] += 1
            finished = finished_request(group, now=self._clock())
            group.reply_to.send(RequestUpdates(finished_requests=[finished]))
            return False
        if group.max_tokens < most_tokens:
            admitted = AdmittedRequest(group.request.handle, group.max_tokens)
            group.reply_to.send(RequestUpdates(admitted=[admitted]))
        group.begin(eos_token_ids=self.model.eos_token_ids if self.model else ())
        request_spans.begin(group, now=self._clock())
        self._live.add(group)
        self.sessions.begin(group, self._clock())
        self._audits.choose(group, self._clock())
        self._admission.add(group)
        is_resumed = group.request.attempt > 0  # it arrived elsewhere, and waits here from now on
        self._admission.record_arrival(group, self._clock() if is_resumed else group.times.arrival)
        if is_resumed:
            self.sort_out_waiting([group])
        self._step_loops.wake()
        return True

    def _end_earlier_attempt(self, group: SequenceGroup) -> None:
        """Makes way for a request that its router sends again, before its old stream is missed."""
        request = group.request
        other = self._live.find(tenant=request.tenant, request_id=request.request_id)
        if other is None or other.request.nonce != request.nonce:
            return
        if other.request.attempt < request.attempt:
            self.abort(other)

    def abort(self, group: SequenceGroup) -> None:
        """Ends a request without an answer; a no-op once it has ended."""
        if group in self._live:
            group.fail(RequestFailure(Code.CANCELLED, "aborted"))
            self._remove(group)
            self._forget(group)

    def stop_sequence(self, group: SequenceGroup, *, index: int, keep_tokens: int) -> None:
        """Ends one branch at a stop string."""
        step_loop = self._step_loops.holder(group)
        if step_loop is not None:
            ended = step_loop.scheduler.stop_sequence(group, index=index, keep_tokens=keep_tokens)
        else:
            ended = self._stop_waiting(group, index=index, keep_tokens=keep_tokens)
        if ended:
            self.send_updates(StepOutcome(ended=[group]))
        self._step_loops.wake()

    def _stop_waiting(self, group: SequenceGroup, *, index: int, keep_tokens: int) -> bool:
        if isinstance(group, BeamGroup):
            return False
        for seq in group.unfinished:
            if seq.branch == index and group in self._admission:
                seq.truncate(keep_tokens)
                seq.finish(FinishReason.STOP_STRING)
                if group.is_finished:
                    self._admission.remove(group)
                    return True
        return False

    def expire(self) -> None:
        """Ends the requests that are out of time, or have waited too long for a worker."""
        now = self._clock()
        late = RequestFailure(Code.DEADLINE_EXCEEDED, "out of time")
        failures = [(group, late) for group in self._live.expired(now)]
        failures += [
            (group, self._no_place(group)) for group in self._placement_deadlines.expired(now)
        ]
        self._fail_all(failures)

    def fail(self, group: SequenceGroup, failure: RequestFailure) -> None:
        """Ends a request by an error; a no-op once it has ended."""
        self._fail_all([(group, failure)])

    def _fail_all(self, failures: Iterable[tuple[SequenceGroup, RequestFailure]]) -> None:
        """Ends many in one message: `send_updates` comes back here when more are out of time."""
        ended = []
        for group, failure in failures:
            if group in self._live and group.failure is None:
                group.fail(failure)
                self._remove(group)
                ended.append(group)
        if ended:
            self.send_updates(StepOutcome(ended=ended))

    def _remove(self, group: SequenceGroup) -> None:
        step_loop = self._step_loops.holder(group)
        if step_loop is not None:
            step_loop.scheduler.abort(group)
        elif group in self._admission:
            self._admission.remove(group)
        for seq in group.unfinished:
            seq.finish(FinishReason.ERROR)
        self._step_loops.wake()

    def _forget(self, group: SequenceGroup) -> None:
        self._live.remove(group)
        self._placement_deadlines.discard(group)
        judge(self._worker_records, group)
        now = self._clock()
        request_spans.end(group, now=now, block=self._step_loops.block_unit)
        self.history.keep(group, now)
        self.stats.observe(group)
        self.sessions.end(group, now)
        self._audits.ended(group, now)
        self._step_loops.record_end(group, now)

    def send_updates(self, outcome: StepOutcome) -> None:
        """Sends each router what an answer means for its requests."""
        now = self._clock()
        if RequestTrace.num_open:
            request_spans.record_tokens(outcome, now)
        updates = router_updates(outcome, now=now)
        for group in outcome.ended:
            self._forget(group)
        for suspicion in outcome.cleared:
            clear(self._worker_records, suspicion)
        for session, news in updates.items():
            session.send(news)
        if outcome.set_back:
            record_failed_step(self._worker_records, outcome.set_back)
            self._queue_again(outcome.set_back, now)
            self.sort_out_waiting(outcome.set_back)
            self._step_loops.wake()
        if self._admission.uncharged:
            for group in self._admission.pop_uncharged():
                self.fail(group, policy_fails())
        if self.has_deadlines:
            self.expire()

    def requeue(self, groups: Iterable[SequenceGroup], *, is_lost: bool) -> None:
        """Returns requests to the queue whose worker was lost, or has finished draining."""
        now = self._clock()
        for group in groups:
            group.timeline.moved(now, is_lost=is_lost)
        self._queue_again(groups, now)

    def _queue_again(self, groups: Iterable[SequenceGroup], now: float) -> None:
        for group in groups:
            self._admission.add(group)
            if group.suspicion is not None:
                group.timeline.add(EventKind.SUSPECTED, now, num_tokens=group.suspicion.position)
            self._admission.record_arrival(group, now)

    def sort_out_waiting(self, groups: Iterable[SequenceGroup] | None = None) -> None:
        """Ends requests that have cost too many workers; notes those that no worker takes."""
        now = self._clock()
        for group in list(self._admission if groups is None else groups):
            if group.suspicion is not None and group.suspicion.is_proven:
                self.fail(group, breaks_workers(group.suspicion))
                continue
            shun(group, self._step_loops.takers(group))
            if self._step_loops.have_taker(group):
                self._placement_deadlines.discard(group)
            else:
                self._placement_deadlines.add(group, now)
        if self._placement_deadlines:
            logger.warning(
                "%s left without a worker that takes them",
                counted(len(self._placement_deadlines), "request"),
            )
            self.expire()

    def _no_place(self, group: SequenceGroup) -> RequestFailure:
        if not self._step_loops.is_serving:
            return no_worker_came(self._placement_deadlines.wait_s)
        if not self._admission.has_adapter(group):
            return no_such_adapter(group.request.adapter)
        return no_room_left(group)

    def audited(self, end: AuditEnd) -> None:
        """Adds an audit to the history and the trace of its request, which has ended."""
        event = audit_event(end)
        self.history.add_audit(end.group, event)
        request_spans.write_audit(end.group, event)

    @property
    def live_groups(self) -> Collection[SequenceGroup]:
        """The requests that have not ended, in the order in which they came."""
        return self._live.groups

    def explain(self, request_id: str) -> Explanation | None:
        """Says what happened to a request that lives, or ended not long ago."""
        for group in self._live.groups:
            if group.request_id == request_id:
                return explain(group, self._admission, now=self._clock())
        return self.history.find(request_id)

    def explain_number(self, request_number: int) -> Explanation | None:
        """Explains a request by the number that it has in frames."""
        for group in self._live.groups:
            if group.number == request_number:
                return explain(group, self._admission, now=self._clock())
        return self.history.find_number(request_number)

    def ids_that_begin_with(self, beginning: str) -> list[str]:
        """Returns the ids of requests that can be explained, each once."""
        live = (group.request_id for group in self._live.groups)
        known = dict.fromkeys((*live, *self.history.request_ids))
        return [request_id for request_id in known if request_id.startswith(beginning)]

    def explain_live(self, max_requests: int) -> list[Explanation]:
        """Explains the oldest requests that have not ended, at most `max_requests`."""
        now = self._clock()
        oldest = islice(self._live.groups, max_requests)
        return [explain(group, self._admission, now=now) for group in oldest]

    def check(self, held: Collection[SequenceGroup]) -> None:
        """Asserts that these groups, of the queue and of all workers, are those that live."""
        for group in self._admission:
            is_stranded = group in self._placement_deadlines
            assert is_stranded is not self._step_loops.have_taker(group), group.request_id
        self._live.check(held)

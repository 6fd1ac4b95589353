"""All requests and all workers of this scheduler: who waits, who runs where, who is told.

Everything here runs on the event loop and returns at once. Routers are told through their
sessions, one message for each step.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import islice

from scheduler_svc import tracing
from scheduler_svc.admission import AdmissionQueue
from scheduler_svc.config import AdmissionBounds
from scheduler_svc.engines import Engines, WorkerEngine
from scheduler_svc.entry import Entry
from scheduler_svc.errors import FailureCode, RequestFailure
from scheduler_svc.explain import Explanation, History, explain
from scheduler_svc.group_start import make_group
from scheduler_svc.live_requests import LiveRequests
from scheduler_svc.model import ModelInfo, TokenizerFiles
from scheduler_svc.plan import StepOutcome
from scheduler_svc.policy import SchedulingPolicy
from scheduler_svc.publishing import Request, RouterSession, ended_request, router_messages
from scheduler_svc.refusals import (
    breaks_workers,
    model_changed,
    no_room_left,
    no_worker_came,
    policy_fails,
)
from scheduler_svc.router_messages import RouterMessage
from scheduler_svc.sequence import FinishReason, SequenceGroup
from scheduler_svc.stats import RequestStats
from scheduler_svc.stranded import Stranded
from scheduler_svc.window import WindowLog

logger = logging.getLogger(__name__)

MAX_LOST_WORKERS = 3
"""A request that was on so many workers when they were lost is not given to another."""


class Cluster:
    """The requests that live, the queue that they wait in, and the engines that serve them."""

    def __init__(
        self,
        *,
        bounds: AdmissionBounds | None = None,
        policy: SchedulingPolicy | None = None,
        worker_wait_s: float = 0.0,
        explain_history: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admission = AdmissionQueue(policy)
        self.engines = Engines()
        self.model: ModelInfo | None = None
        self.tokenizer_files: TokenizerFiles = {}
        self.history = History(explain_history)
        self.request_stats = RequestStats()
        self.num_refused: Counter[str] = Counter()
        self._started_at = clock()
        self._clock = clock
        self._live = LiveRequests()
        self._window_log = WindowLog()
        self._stranded = Stranded(worker_wait_s)
        self._entry = Entry(
            admission=self.admission,
            live=self._live,
            engines=self.engines,
            bounds=bounds or AdmissionBounds(),
        )

    def __len__(self) -> int:
        return len(self._live)

    @property
    def is_serving(self) -> bool:
        """Whether there is a worker that takes new requests."""
        return self.engines.is_serving

    @property
    def has_deadlines(self) -> bool:
        """Whether `expire` may have something to do."""
        return self._live.has_deadlines or bool(self._stranded)

    @property
    def num_stranded(self) -> int:
        """Requests of the admission queue that no worker takes at the moment."""
        return len(self._stranded)

    # Requests

    def add(self, group: SequenceGroup, *, session: RouterSession, handle: int) -> Request | None:
        """Queues a request; one that is refused ends at once, and None is returned."""
        request = Request(group, session, handle)
        self._end_earlier_attempt(group)
        most_tokens = group.max_tokens
        failure = self._entry.refusal(group, self.model, self._clock())
        if failure is not None:
            group.failure = failure
            self.num_refused[failure.code.name] += 1
            session.send(RouterMessage(ended=[ended_request(request, now=self._clock())]))
            return None
        if group.max_tokens < most_tokens:
            session.send(RouterMessage(admitted=[(handle, group.max_tokens)]))
        make_group(group, eos_token_ids=self.model.eos_token_ids if self.model else ())
        tracing.begin(group, now=self._clock())
        self._live.add(request)
        self.admission.add(group)
        is_resumed = group.attempt > 0  # it arrived elsewhere, and waits here from now on
        self.admission.note_arrival(group, self._clock() if is_resumed else group.times.arrival)
        if is_resumed:
            self._sort_out_waiting([group])
        self.wake()
        return request

    def _end_earlier_attempt(self, group: SequenceGroup) -> None:
        """Makes way for a request that its router sends again, before its old stream is missed."""
        other = self._live.find(tenant=group.tenant, request_id=group.request_id)
        if other is None or other.group.nonce != group.nonce:
            return
        if other.group.attempt < group.attempt:
            self.abort(other)

    def abort(self, request: Request) -> None:
        """Ends a request without an answer; a no-op once it has ended."""
        if request.group in self._live:
            group = request.group
            group.failure = group.failure or RequestFailure(FailureCode.CANCELLED, "aborted")
            self._take_out(group)
            self._forget(group)

    def stop_sequence(self, request: Request, *, index: int, keep_tokens: int) -> None:
        """Ends one branch at a stop string."""
        group = request.group
        engine = self.engines.holder(group)
        if engine is not None:
            ended = engine.scheduler.stop_sequence(group, index=index, keep_tokens=keep_tokens)
        else:
            ended = self._stop_waiting(group, index=index, keep_tokens=keep_tokens)
        if ended:
            self.publish(StepOutcome(ended=[group]))
        self.wake()

    def _stop_waiting(self, group: SequenceGroup, *, index: int, keep_tokens: int) -> bool:
        for seq in group.unfinished:
            if seq.branch == index and group.search is None and group in self.admission:
                del seq.output_token_ids[keep_tokens:]
                seq.finish(FinishReason.STOP_STRING)
                if group.is_finished:
                    self.admission.remove(group)
                    return True
        return False

    def expire(self) -> None:
        """Ends the requests that are out of time, or have waited too long for a worker."""
        now = self._clock()
        late = RequestFailure(FailureCode.DEADLINE_EXCEEDED, "out of time")
        failures = [(group, late) for group in self._live.expired(now)]
        failures += [(group, self._no_place(group)) for group in self._stranded.expired(now)]
        self._fail_all(failures)

    def _fail(self, group: SequenceGroup, failure: RequestFailure) -> None:
        """Ends a request by an error; a no-op once it has ended."""
        self._fail_all([(group, failure)])

    def _fail_all(self, failures: Iterable[tuple[SequenceGroup, RequestFailure]]) -> None:
        """Ends many in one message: `publish` comes back here when more are out of time."""
        ended = []
        for group, failure in failures:
            if group in self._live and group.failure is None:
                group.failure = failure
                self._take_out(group)
                ended.append(group)
        if ended:
            self.publish(StepOutcome(ended=ended))

    def _take_out(self, group: SequenceGroup) -> None:
        engine = self.engines.holder(group)
        if engine is not None:
            engine.scheduler.abort(group)
        elif group in self.admission:
            self.admission.remove(group)
        for seq in group.unfinished:
            seq.finish(FinishReason.ERROR)
        self.wake()

    def _forget(self, group: SequenceGroup) -> None:
        self._live.remove(group)
        self._stranded.discard(group)
        now = self._clock()
        tracing.end(group, now=now, block=self.engines.block_unit)
        self.history.keep(group, now)
        self.request_stats.observe(group, now)
        self.engines.note_end(group, now)

    # Looking inside

    @property
    def live_groups(self) -> Collection[SequenceGroup]:
        """The requests that have not ended, in the order in which they came."""
        return self._live.groups

    @property
    def uptime_s(self) -> float:
        return self._clock() - self._started_at

    def explain(self, request_id: str) -> Explanation | None:
        """Says what happened to a request that lives, or ended not long ago."""
        for group in self._live.groups:
            if group.request_id == request_id:
                return explain(group, self.admission, now=self._clock())
        return self.history.find(request_id)

    def explain_live(self, max_requests: int) -> list[Explanation]:
        """Explains the oldest requests that have not ended, at most `max_requests`."""
        now = self._clock()
        oldest = islice(self._live.groups, max_requests)
        return [explain(group, self.admission, now=now) for group in oldest]

    # Workers

    def serve(self, model: ModelInfo) -> None:
        """Says which model workers serve from now on; what waits for another one ends."""
        if self.model not in (None, model):
            for group in list(self.admission):
                self._fail(group, model_changed())
        self.model = model

    def join(self, engine: WorkerEngine) -> None:
        self.engines.append(engine)
        self._window_log.note(self.model, self.engines)
        self._sort_out_waiting()
        engine.wake()

    def drain(self, engine: WorkerEngine) -> None:
        """Lets a worker finish what it has; requests that only it would have taken wait."""
        engine.scheduler.drain()
        self._window_log.note(self.model, self.engines)
        self._sort_out_waiting()
        self.wake()

    def leave(self, engine: WorkerEngine) -> None:
        """Takes a worker out; what it was doing starts again on another, or waits for one."""
        if engine not in self.engines:
            return
        self.engines.remove(engine)
        self._window_log.note(self.model, self.engines)
        is_lost = engine.scheduler.is_accepting  # else it has announced that it goes
        groups, now = engine.scheduler.evacuate(), self._clock()
        if groups:
            logger.warning("worker %s left %d requests", engine.worker.address, len(groups))
        for group in groups:
            group.num_lost_workers += is_lost
            self.admission.add(group)
            group.timeline.moved(now, is_lost=is_lost)
            self.admission.note_arrival(group, now)
        self._sort_out_waiting()
        self.wake()

    def _sort_out_waiting(self, groups: Iterable[SequenceGroup] | None = None) -> None:
        """Ends requests that were on too many lost workers; notes those that no worker takes."""
        now = self._clock()
        for group in list(self.admission if groups is None else groups):
            if group.num_lost_workers >= MAX_LOST_WORKERS:
                self._fail(group, breaks_workers(group))
            elif self.engines.have_taker(group):
                self._stranded.discard(group)
            else:
                self._stranded.add(group, now)
        if self._stranded:
            logger.warning("%d requests wait for a worker that takes them", len(self._stranded))
            self.expire()

    def _no_place(self, group: SequenceGroup) -> RequestFailure:
        if not self.is_serving:
            return no_worker_came(self._stranded.wait_s)
        return no_room_left(group)

    def wake(self) -> None:
        """Lets every engine look for work."""
        self.engines.wake()

    # Telling routers

    def publish(self, outcome: StepOutcome) -> None:
        """Sends each router what an answer means for its requests."""
        now = self._clock()
        tracing.note_tokens(outcome, now)
        messages = router_messages(outcome, self._live.by_group, now=now)
        for group in outcome.ended:
            self._forget(group)
        for session, message in messages.items():
            session.send(message)
        for group in self.admission.take_unpriced():
            self._fail(group, policy_fails())
        if self.has_deadlines:
            self.expire()

    def check(self) -> None:
        """Asserts the invariants of every worker, and that each live request is in one place."""
        held = list(self.admission)
        for engine in self.engines:
            engine.scheduler.check()
            held += engine.scheduler.running + engine.scheduler.swapped
        assert len(held) == len(set(held)), "a request is in two queues"
        for group in self.admission:
            assert (group in self._stranded) is not self.engines.have_taker(group), group.request_id
        self._live.check(held)

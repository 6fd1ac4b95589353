"""The workers of this scheduler, which join, drain and leave, and the requests that they serve.

Everything here runs on the event loop and returns at once.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from signalbox_contract.model import Adapter, ModelInfo
from signalbox_contract.wording import counted
from signalbox_rpc.metrics.sample import Sample
from signalbox_scheduler.audits.choice import Audits, SampledAudits
from signalbox_scheduler.config import AdmissionBounds, Disaggregation
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.effective_window import WindowLog
from signalbox_scheduler.queue.policies import FCFS, SchedulingPolicy
from signalbox_scheduler.requests.failures import model_changed
from signalbox_scheduler.transfers.peer_registry import PeerRegistry
from signalbox_scheduler.workers import adapter_use
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.loss_attribution import record_loss
from signalbox_scheduler.workers.quarantine import WorkerRecords
from signalbox_scheduler.workers.request_lifecycle import RequestLifecycle
from signalbox_scheduler.workers.roles import Roles
from signalbox_scheduler.workers.starting_workers import StartingWorkers
from signalbox_scheduler.workers.suspected_sources import SuspectedSources
from signalbox_scheduler.workers.unfinished_clears import UnfinishedClears
from signalbox_scheduler.workers.worker_pool import StepLoops

logger = logging.getLogger(__name__)


class Cluster:
    """The step loops, the queue that their workers share, and the requests."""

    def __init__(
        self,
        *,
        bounds: AdmissionBounds | None = None,
        policy: SchedulingPolicy = FCFS,
        worker_wait_s: float = 0.0,
        max_quarantine_s: float = 0.0,
        explain_history: int = 1024,
        disaggregation: Disaggregation = Disaggregation.STATIC,
        audit_cpu: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admission = AdmissionQueue(policy)
        self.peers = PeerRegistry()
        """The workers that exchange KV, and their connectors."""
        self._unfinished_clears = UnfinishedClears()
        self.step_loops = StepLoops()
        self.roles = Roles(disaggregation, self.step_loops)
        self.tokenizer_files: dict[str, bytes] = {}
        self.starting_workers = StartingWorkers()
        self.audits = SampledAudits(audit_cpu) if audit_cpu else Audits()
        """The audits of earlier answers, and what they have found."""
        self.worker_records = WorkerRecords(max_pause_s=max_quarantine_s)
        self.requests = RequestLifecycle(
            admission=self.admission,
            step_loops=self.step_loops,
            bounds=bounds or AdmissionBounds(),
            worker_wait_s=worker_wait_s,
            worker_records=self.worker_records,
            explain_history=explain_history,
            audits=self.audits,
            clock=clock,
        )
        suspected = SuspectedSources(
            step_loops=self.step_loops,
            peers=self.peers,
            worker_records=self.worker_records,
            drain=self.drain,
            clock=clock,
        )
        self.audits.log.listeners.append(suspected.take)
        self.audits.log.end_listeners.append(self.requests.audited)
        self._of_audits = (self.audits.log, suspected) if audit_cpu else ()
        """Parts that count audits, if there are any."""
        self._started_at = clock()
        self._clock = clock
        self._window_log = WindowLog()
        self.watchers: dict[Callable[[], None], None] = {}
        """Called when what is served may have changed: whether, which model, which window."""

    @property
    def model(self) -> ModelInfo | None:
        """Model that the workers serve; None until the first has joined."""
        return self.requests.model

    @property
    def is_serving(self) -> bool:
        """True if a worker accepts new requests."""
        return self.step_loops.is_serving

    @property
    def now(self) -> float:
        """Seconds on the scheduler's clock."""
        return self._clock()

    @property
    def uptime_s(self) -> float:
        return self.now - self._started_at

    def samples(self) -> Iterator[Sample]:
        """Yields the counts of all workers together; each `Scheduler` has those of its own."""
        yield from self.requests.samples()
        yield from self.worker_records.samples()
        for part in self._of_audits:
            yield from part.samples()
        schedulers = [step_loop.scheduler for step_loop in self.step_loops]
        yield from adapter_use.samples(self.model, self.admission, schedulers)

    def serve(self, model: ModelInfo) -> None:
        """Says which model workers serve from now on; what waits for another one ends."""
        if self.model == model and self.step_loops:
            texts = dict.fromkeys((*self.model.started_as, *model.started_as))
            model = replace(model, started_as=tuple(texts))
        if self.model not in (None, model):
            for group in list(self.admission):
                self.requests.fail(group, model_changed())
        self.requests.model = model
        self.set_adapters(model.adapters)

    def set_adapters(self, adapters: Iterable[Adapter]) -> None:
        """Says which adapters all workers have from now on; what waits goes on waiting."""
        assert self.model is not None
        in_order = tuple(sorted(adapters, key=lambda one: one.name))
        self.requests.model = replace(self.model, adapters=in_order)
        self.admission.adapters = frozenset(one.sha256 for one in in_order)

    def change_adapters(self, adapters: Iterable[Adapter]) -> None:
        """Sets them, and lets routers and what waits know."""
        self.set_adapters(adapters)
        self.tell_watchers()
        self.requests.sort_out_waiting()
        self.wake()

    def num_requests_by_adapter(self) -> Counter[str]:
        """Returns how many live requests each adapter computes, by its SHA-256."""
        return Counter(group.request.adapter for group in self.requests.live_groups)

    def needed_adapters(self) -> set[str]:
        """Returns the SHA-256 of the adapters that a request or a step in flight needs."""
        in_flight = (
            seq.group.request.adapter
            for loop in self.step_loops
            for plan in loop.scheduler.in_flight
            for seq in plan.seqs
        )
        return {*self.num_requests_by_adapter(), *in_flight}

    def join(self, step_loop: StepLoop) -> None:
        self.step_loops.append(step_loop)
        self.peers.join(step_loop.scheduler.state, step_loop.wake)
        self.audits.join(step_loop.scheduler.state, step_loop.wake)
        self._unfinished_clears.join(
            step_loop.scheduler, [loop.scheduler for loop in self.step_loops[:-1]]
        )
        self.roles.settle()
        self.tell_watchers()
        self.requests.sort_out_waiting()
        step_loop.wake()

    def drain(self, step_loop: StepLoop) -> None:
        """Lets a worker migrate or finish what it has; a no-op if it drains already.

        Requests that only it would have taken wait.
        """
        if step_loop.is_draining:
            return
        logger.info("worker drains: %(worker)s", {"worker": step_loop.worker_name})
        step_loop.recorder.drains(self._clock())
        step_loop.scheduler.drain()
        self.roles.settle()
        self.tell_watchers()
        self.requests.sort_out_waiting()
        self.wake()

    def clear_prefix_cache(self, tenant: str | None, on_cleared: Callable[[str, str], None]) -> int:
        """Clears the caches and stores of all workers; returns their number.

        Args:
            tenant: see `Scheduler.clear_prefix_cache`.
            on_cleared: called once for each worker, with its name and why its store could not be
                cleared, or an empty text.
        """
        number = self._unfinished_clears.ask(tenant)
        for step_loop in self.step_loops:
            of_worker = partial(on_cleared, step_loop.worker_name)
            self._unfinished_clears.begin(step_loop.scheduler, tenant, number, of_worker)
        self.wake()
        return len(self.step_loops)

    def leave(self, step_loop: StepLoop) -> None:
        """Takes a worker out; what it was doing starts again on another, or waits for one."""
        if step_loop not in self.step_loops:
            return
        self.step_loops.remove(step_loop)
        self.peers.leave(step_loop.scheduler.state, self._clock())
        self.audits.leave(step_loop.scheduler.state)
        self.roles.settle()
        self.tell_watchers()
        is_lost = step_loop.scheduler.is_accepting  # else it has announced that it goes
        if is_lost:
            record_loss(self.worker_records, step_loop.scheduler)
        groups = step_loop.scheduler.evacuate()
        if groups:
            logger.warning(
                "worker %s left %s", step_loop.worker_name, counted(len(groups), "request")
            )
        self.requests.requeue(groups, is_lost=is_lost)
        self.requests.sort_out_waiting()
        self.wake()

    def wake(self) -> None:
        """Lets every step loop look for work."""
        self.step_loops.wake()

    def tell_watchers(self) -> None:
        """Says that what is served may have changed."""
        self._window_log.record(self.model, self.step_loops)
        for watcher in self.watchers:
            watcher()

    def check(self) -> None:
        """Asserts the invariants of every worker, and that each live request is in one place."""
        held = list(self.admission)
        for step_loop in self.step_loops:
            step_loop.scheduler.check()
            scheduler = step_loop.scheduler
            held += [*scheduler.running, *scheduler.swapped, *scheduler.loading]
        assert len(held) == len(set(held)), "a request is in two queues"
        self.requests.check(held)

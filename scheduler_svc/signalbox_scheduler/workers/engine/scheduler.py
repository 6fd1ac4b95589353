"""Plans the steps of one worker: how many tokens each sequence computes, in which blocks.

Pure planning: no clock, no I/O. `schedule` books what it plans; `update` takes the result. Steps
are planned before the first is answered, so a sequence counts its tokens in flight, and while
there are any it is not preempted, forked or freed.

`SchedulerState` has the owners of the state. `Planner`, `GroupSelection`, `Preemption` and
`Swapping` decide one step; `OutputProcessor` processes its result.
"""

from collections.abc import Collection, Iterator

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_contract.step_result import StepResult, StepTimings
from signalbox_contract.updates import FinishReason
from signalbox_contract.worker_role import WorkerRole
from signalbox_rpc.metrics.sample import Sample, gauge
from signalbox_scheduler.config import WorkerConfig
from signalbox_scheduler.insight.stats import RequestStats, StepStats
from signalbox_scheduler.insight.step_observer import UNOBSERVED, StepObserver
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.kv.pool_samples import pool_samples
from signalbox_scheduler.planning.connector import OnCleared, nothing_waits
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.planner import Planner
from signalbox_scheduler.planning.preemption import Preemption
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.planning.suspect_turns import pop_cleared
from signalbox_scheduler.planning.swapping import Swapping
from signalbox_scheduler.planning.token_budget import token_budget
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import (
    Counters,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.results.output_processor import OutputProcessor
from signalbox_scheduler.results.step_outcome import StepOutcome

LONG_STEP_S = 0.05
"""Time beside which the worker may wait for its next step until the last one is answered."""


class Scheduler:
    """One worker's queues and blocks."""

    def __init__(self, config: WorkerConfig, *, admission: AdmissionQueue, cost: CostModel) -> None:
        self.config = config
        self.worker_name = config.identity.address
        self.limits = config.limits
        self.token_budget = config.limits.max_num_batched_tokens
        """Tokens of the next step."""
        self._memory_tokens: int | None = None
        self.cost = cost
        self.state = state = SchedulerState.make(config, admission=admission, cost=cost)
        self.in_flight = state.in_flight
        self.steps = StepStats(stages=state.stages)
        self.request_stats = RequestStats()  # of those that ended here
        self.observer: StepObserver = UNOBSERVED
        """Told of each step that is answered; set while a watcher looks on."""
        self.blocks = state.blocks
        self.grammars = state.grammars
        self._queues = state.queues
        self._swapping = Swapping(state)
        self.preemption = Preemption(state, self._swapping)
        self.planner = Planner(state, preemption=self.preemption, swapping=self._swapping)
        self.output_processor = OutputProcessor(state)

    # Steps

    def schedule(self, now: float) -> StepPlan | None:
        """Plans one step and books its blocks; None if there is nothing to do now."""
        connector = self.state.connector
        if self.state.suspects.must_wait:
            return None
        plan = self.in_flight.new_plan(now, token_budget=self.token_budget)
        self.state.audits.begin_step()
        connector.begin_step(plan, now)
        self.planner.fill(plan, now)
        self.state.audits.fill(plan, now)
        connector.finish_step(plan, now)
        self.state.finish_copies(plan)  # copies alone are work, too
        if not plan.has_work and (self.in_flight or now < connector.next_poll_at):
            return None
        self.state.attach(plan)
        return self.in_flight.add(plan)

    @property
    def num_steps(self) -> int:
        """Steps that have been planned."""
        return self.in_flight.num_planned

    def pop_failed(self) -> list[SequenceGroup]:
        """Returns the groups that planning had to end, each once."""
        sequence_release = self.state.sequence_release
        return sequence_release.pop_failed() if sequence_release.failed else []

    def update(self, result: StepResult, now: float) -> StepOutcome:
        """Processes the result of the oldest planned step."""
        seconds = now - self.in_flight.oldest_began_at
        plan = self.in_flight.pop_answered(result, now)
        if result.max_num_batched_tokens != self._memory_tokens:
            self._memory_tokens = result.max_num_batched_tokens
            self.token_budget = token_budget(self.limits, memory_tokens=self._memory_tokens)
        if plan.has_work and not plan.is_audit:  # else it was sent to ask for the ends of moves
            self._observe_costs(plan, result.timings, now, seconds=seconds)
            self.planner.mask_turns.observe(plan, result, seconds=seconds)
            if self.limits.max_draft_tokens:
                self.state.drafts.observe_step(plan, result)
            self.steps.observe(plan, result, seconds=seconds)
            self.observer.observe(plan, result, now, seconds=seconds)
        connector = self.state.connector
        if result.moves:
            connector.process(result.moves, now)
        outcome = self._process(plan, result, now, seconds=seconds)
        connector.step_answered(now)
        if plan.is_alone and (cleared := pop_cleared(plan.seqs[0].group)):
            outcome.cleared.append(cleared)
            plan.seqs[0].group.timeline.add(EventKind.CLEARED, now, step_id=plan.step_id)
        return outcome

    def _process(
        self, plan: StepPlan, result: StepResult, now: float, *, seconds: float
    ) -> StepOutcome:
        if plan.is_audit:
            self.state.audits.compare(plan, result, now, seconds=seconds)
            return StepOutcome()
        outcome = self.output_processor.process(plan, result, now)
        if result.draw_logits is not None:
            self.state.audits.record(plan, result)
        return outcome

    def _observe_costs(
        self, plan: StepPlan, timings: StepTimings, now: float, *, seconds: float
    ) -> None:
        if plan.has_sections or self.cost.has_seen_swaps:
            self._swapping.observe(plan, swap_ns=timings.swap_ns)
        num_seqs, num_tokens = len(plan.seqs), plan.total_tokens
        microbatches, forward_ns = self.planner.microbatches, timings.forward_ns
        if microbatches.is_used:
            microbatches.observe(num_tokens=num_tokens, forward_ns=forward_ns)
            if not plan.num_before:
                total_ns = 1e9 * (now - plan.planned_at)
                microbatches.observe_alone(total_ns=total_ns, forward_ns=forward_ns)
        if num_tokens > num_seqs:
            self.cost.observe_prefill(
                num_seqs=num_seqs, num_tokens=num_tokens, forward_ns=timings.forward_ns
            )
        elif num_seqs:
            self.cost.observe_decode(num_seqs=num_seqs, seconds=seconds)

    # Ending

    def stop_sequence(self, group: SequenceGroup, *, index: int, keep_tokens: int) -> bool:
        """Ends a branch at a stop string; returns whether that ended the group.

        Does nothing for a branch that is unknown or has ended, and while the group awaits answers.
        """
        self.state.decode_batch.release(group)
        for seq in () if group.awaits_answers else group.unfinished:
            if seq.branch == index:
                seq.truncate(keep_tokens)
                self.state.sequence_release.end(seq, FinishReason.STOP_STRING)
        return group.is_finished

    def abort(self, group: SequenceGroup) -> None:
        """Ends a group that runs or is swapped. Blocks come back once no step holds them."""
        self.state.decode_batch.release(group)
        self.state.sequence_release.end_all(group)

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes; False, changing nothing, unless all work has ended."""
        if self.has_unfinished:
            return False
        self.state.audits.drop()
        if not self.blocks.reset_prefix_cache():
            return False
        self.state.worker_state.num_clears += 1
        self.state.connector.clear(None, nothing_waits)
        return True

    def clear_prefix_cache(
        self, tenant: str | None, on_cleared: OnCleared, mark: ClearMark | None = None
    ) -> None:
        """Lets no cached prefix and no recent output be found, also while requests run, and clears
        the store.

        What running requests compute from now on may be found again.

        Args:
            tenant: whose blocks are removed from the store; None is all. The pools, which do not
                know whose blocks they have, forget all.
            on_cleared: called when the store is cleared.
            mark: a store that has made this clear is left as it is.
        """
        self.forget_prefixes()
        self.state.worker_state.num_clears += 1
        self.state.connector.clear(tenant, on_cleared, mark)

    def forget_prefixes(self) -> None:
        """Lets no prefix be found that the pools have now."""
        self.blocks.forget_prefixes([*self._queues.running, *self._queues.swapped])

    def drain(self) -> None:
        """Admits no new groups from now on; groups that have started still return."""
        self._queues.drain()
        self.state.audits.drop()
        self.state.connector.drain()

    def set_role(self, role: WorkerRole) -> None:
        """Says which part of the work is this worker's from now on; what runs stays, or moves."""
        self._queues.only_decodes = role is WorkerRole.DECODE
        if self._queues.only_decodes:
            self.admission.release(self._queues)
        self.state.connector.set_role(role)

    def evacuate(self) -> list[SequenceGroup]:
        """Takes everything out that had not ended: the worker is gone, and its KV with it.

        The scheduler is not used afterwards; the groups can be recomputed elsewhere.
        """
        self.state.decode_batch.release_all()
        self.state.audits.close()
        self.grammars.leave()
        self.state.connector.close()
        groups = self._queues.remove_all()
        for group in groups:
            for seq in group.sequences:
                self.blocks.free(seq)
            group.forget_progress()
            group.set_status(SequenceStatus.WAITING)
        return groups

    # Looking inside

    def samples(self) -> Iterator[Sample]:
        """Yields the counts of all parts, since the worker joined."""
        yield gauge("num_requests_running", "Requests in a worker's batch.", len(self.running))
        yield gauge("num_requests_swapped", "Requests in CPU swap.", len(self.swapped))
        numerics = self.planner.numerics_changes.numerics
        cache_dtype = numerics.kv_cache_dtype if numerics else ""
        yield from pool_samples(self.blocks, cache_dtype=cache_dtype)
        for part in (self.output_processor, self.preemption, self.planner, self.steps, self.cost):
            yield from part.samples()
        yield from self.state.connector.samples()

    @property
    def has_enough_in_flight(self) -> bool:
        """True if no further step is to be planned until one is answered.

        While groups come or leave, a long step is enough: copies begin with the next one, and the
        worker waits for that only as long as a message takes.
        """
        if len(self.in_flight) >= self.limits.max_in_flight:
            return True
        if not self.state.connector.exchanges_groups:
            return False
        return self.in_flight.expected_s() >= LONG_STEP_S and not self.planner.microbatches.is_used

    @property
    def admission(self) -> AdmissionQueue:
        """The queue that all workers share."""
        return self._queues.admission

    @property
    def running(self) -> list[SequenceGroup]:
        """Running groups by rank. Callers must not change this list or `swapped`."""
        return self._queues.running

    @property
    def swapped(self) -> list[SequenceGroup]:
        return self._queues.swapped

    @property
    def loading(self) -> Collection[SequenceGroup]:
        """Groups whose prefix is looked for in the worker's store, or on its way from there."""
        return self._queues.loading

    @property
    def is_accepting(self) -> bool:
        """True if groups that no worker has worked on may be admitted."""
        return self._queues.is_accepting

    @property
    def has_unfinished(self) -> bool:
        """True if a group is running, swapped or to be recomputed, or a step is in flight."""
        on_worker = self.running or self.swapped or self.loading or self.in_flight
        return bool(on_worker or self.admission.started)

    def counters(self, seq: Sequence) -> Counters:
        """Returns how far a sequence is, wherever its counters are kept."""
        return self.state.decode_batch.counters(seq)

    def holds(self, group: SequenceGroup) -> bool:
        """Says whether the group runs or is swapped here."""
        return group in self._queues

    def can_ever_take(self, group: SequenceGroup) -> bool:
        """Says whether a waiting group could come in here, if not now then when others are gone."""
        return (self._queues.takes_new or group.has_started) and self.state.selection.can_ever_run(
            group
        )

    def most_new_tokens(self, group: SequenceGroup) -> int:
        """Returns the greatest max_tokens of a new group that is taken here; else below 1."""
        return self.state.selection.most_new_tokens(group) if self._queues.takes_new else 0

    @property
    def effective_max_model_len(self) -> int:
        """Tokens of the longest sequence of a new group that is taken here; 0 if none is."""
        return self.blocks.sizes.longest_alone if self._queues.takes_new else 0

    def check(self) -> None:
        """Asserts that blocks are conserved and each group is in one queue, in its status."""
        self._queues.check()
        self.state.connector.check()
        self.state.audits.check()
        self.state.decode_batch.check()
        queued = {seq for group in self.running + self.swapped for seq in group.sequences}
        self.blocks.check(queued | self.state.sequence_release.draining)
        self.state.worker_state.check(queued)
        self.state.drafts.check()
        self.grammars.check()

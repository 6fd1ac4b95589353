"""Plans the steps of one worker: how many tokens each sequence computes, in which blocks.

Pure planning: no clock, no I/O. `schedule` books what it plans; `update` takes the result. Steps
are planned before the first is answered, so a sequence counts its tokens in flight, and while
there are any it is not preempted, forked or freed.

`Bookkeeping` has the owners of the state. `Planner`, `GroupSelection`, `Preemption` and `Swapping`
decide one step; `OutputProcessor` processes its result.
"""

from collections.abc import Collection, Iterator

from signalbox_contract.model import Arithmetic, StoreCapacity, WorkerRank
from signalbox_contract.sections.block_moves import NO_MOVES
from signalbox_contract.sections.store_moves import ClearMark
from signalbox_contract.step_result import StepResult, StepTimings
from signalbox_contract.updates import FinishReason
from signalbox_contract.worker_role import WorkerRole
from signalbox_rpc.metrics.sample import Sample, gauge
from signalbox_scheduler.config import CacheShape, PreemptionMode, StepLimits
from signalbox_scheduler.insight.stats import RequestStats, StepStats
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.kv_moves.block_exports import PeerIdentity, most_lent
from signalbox_scheduler.kv_moves.peers import Peers, TransferPeer
from signalbox_scheduler.kv_moves.store_planning import OnCleared, StorePlanning
from signalbox_scheduler.kv_moves.worker_handovers import WorkerHandovers
from signalbox_scheduler.planning.bookkeeping import Bookkeeping
from signalbox_scheduler.planning.group_selection import GroupSelection
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.planner import Planner
from signalbox_scheduler.planning.preemption import Preemption
from signalbox_scheduler.planning.steps_in_flight import StepsInFlight
from signalbox_scheduler.planning.suspect_turns import Trials, pop_cleared
from signalbox_scheduler.planning.swapping import Swapping
from signalbox_scheduler.planning.token_budget import token_budget
from signalbox_scheduler.planning.worker_grammars import WorkerGrammars
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import (
    Counters,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)
from signalbox_scheduler.requests.stage_use import StageAccount
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.results.output_processor import OutputProcessor
from signalbox_scheduler.results.step_outcome import StepOutcome

LONG_STEP_S = 0.05
"""Time beside which the worker may wait for its next step until the last one is answered."""


class Scheduler:
    """One worker's queues and blocks."""

    def __init__(
        self,
        *,
        limits: StepLimits,
        cache: CacheShape,
        admission: AdmissionQueue,
        preemption_mode: PreemptionMode = PreemptionMode.AUTO,
        cost: CostModel | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        arithmetic: Arithmetic | None = None,
        worker_name: str = "",
        grammar_bytes: int,
        ranks: tuple[WorkerRank, ...] = (),
        store: StoreCapacity | None = None,
        identity: PeerIdentity | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.worker_name = worker_name
        self.limits = limits
        self.token_budget = limits.max_num_batched_tokens
        """Tokens of the next step."""
        self._memory_tokens: int | None = None
        self.cost = cost or CostModel()
        self.inflight = StepsInFlight(self.cost)
        self.steps = StepStats(stages=StageAccount(ranks))
        self.request_stats = RequestStats()  # of those that ended here
        self.books = books = Bookkeeping.make(cache, admission=admission, costs=self.cost)
        self.blocks = books.blocks
        self._queues = books.queues
        self.grammars = WorkerGrammars(books, memory_bytes=grammar_bytes)
        self._trials = Trials(books.queues, worker_name=worker_name)
        self._group_selection = GroupSelection(
            books, limits=limits, grammars=self.grammars, trials=self._trials
        )
        self.store = self._make_store_planning(store, identity=identity, peers=peers)
        """None if the worker has neither store nor peers, or if its CPU pool caches nothing."""
        self._swapping = Swapping(
            books, group_selection=self._group_selection, cost=self.cost, mode=preemption_mode
        )
        self.preemption = Preemption(books, swapping=self._swapping, incoming=self.handovers)
        self.planner = Planner(
            books,
            limits=limits,
            group_selection=self._group_selection,
            preemption=self.preemption,
            swapping=self._swapping,
            trials=self._trials,
            arithmetic=arithmetic,
            worker_name=worker_name,
            stages=self.steps.stages,
            incoming=self.handovers,
        )
        if self.store is not None and self.store.write_behind is not None:
            self.planner.on_found = self.store.write_behind.want_found
        self.output_processor = OutputProcessor(books, eos_token_ids=eos_token_ids)

    def _make_store_planning(
        self, store: StoreCapacity | None, *, identity: PeerIdentity | None, peers: Peers | None
    ) -> StorePlanning | None:
        tier = self.blocks.cpu_tier
        if not most_lent(tier.pool.num_blocks):
            identity = None
        moves_blocks = store is not None or identity is not None
        if not (moves_blocks and tier.pool.num_blocks and tier.is_cache):
            return None
        return StorePlanning(
            store,
            self.books,
            group_selection=self._group_selection,
            inflight=self.inflight,
            cost=self.cost,
            identity=identity,
            peers=peers,
            grammars=self.grammars,
            stages=self.steps.stages,
        )

    # Steps

    def schedule(self, now: float) -> StepPlan | None:
        """Plans one step and books its blocks; None if there is nothing to do now."""
        trials, worker_state = self._trials, self.books.worker_state
        has_suspects = trials.begun is not None or bool(self._queues.admission.suspects)
        if has_suspects and trials.must_wait(self.inflight):
            return None
        plan = self.inflight.new_plan(now, token_budget=self.token_budget)
        store = self.store
        if store is not None:
            store.begin_plan(now, may_begin=not has_suspects)
        if has_suspects:
            self._fill_in_turns(plan, now)
        else:
            self.planner.fill(plan, now)
        if self.grammars.wanted is not None or self._queues.admission.parked.num_groups:
            self.grammars.plan()
        if store is not None and not plan.is_alone:
            store.finish_plan(plan, now)
        is_empty = self.planner.is_empty(plan) and not self._moves_alone(plan, now)
        if self.blocks.copies.has_any:
            self._swapping.finish_plan(plan)
        if is_empty and plan.block_moves is NO_MOVES:
            return None
        if store is not None:
            store.asked(now)
        if worker_state.forks or worker_state.forget_seq_ids:
            worker_state.finish_plan(plan)
        self.inflight.add(plan)
        trials.is_turn = not plan.is_alone
        return plan

    def _moves_alone(self, plan: StepPlan, now: float) -> bool:
        """Returns whether an otherwise empty step is sent for the sake of the worker's store."""
        if self.store is None:
            return False
        return plan.store_moves is not None or (not self.inflight and self.store.polls(now))

    @property
    def num_steps(self) -> int:
        """Steps that have been planned."""
        return self.inflight.num_planned

    @property
    def num_returned(self) -> int:
        """Times that a group has gone back to the shared queue; another worker may take it."""
        num_loaded = self.store.loading.num_returned if self.store is not None else 0
        return self.preemption.num_recomputes + num_loaded

    def _fill_in_turns(self, plan: StepPlan, now: float) -> None:
        """Plans for a suspect or for all others, whose turn it is; else for those with work."""
        tries = not self.inflight and self._trials.has_work
        if tries and self._trials.is_turn:
            self.planner.fill_alone(plan, now)
        if not plan.is_alone:
            self.planner.fill(plan, now)
        if tries and self.planner.is_empty(plan) and not self._trials.is_turn:
            self.planner.fill_alone(plan, now)

    def pop_failed(self) -> list[SequenceGroup]:
        """Returns the groups that planning had to end, each once."""
        sequence_release = self.books.sequence_release
        return sequence_release.pop_failed() if sequence_release.failed else []

    def update(self, result: StepResult, now: float) -> StepOutcome:
        """Processes the result of the oldest planned step."""
        seconds = now - self.inflight.oldest_began_at
        plan = self.inflight.pop_answered(result, now)
        if result.max_num_batched_tokens != self._memory_tokens:
            self._memory_tokens = result.max_num_batched_tokens
            self.token_budget = token_budget(self.limits, memory_tokens=self._memory_tokens)
        if plan.seqs or plan.has_sections:  # else it was sent to ask for the ends of moves
            self._observe_costs(plan, result.timings, now, seconds=seconds)
            self.planner.mask_turns.observe(plan, result, seconds=seconds)
            self.steps.observe(plan, result, seconds=seconds)
        if self.store is not None and result.moves:
            self.store.process(result.moves, now)
        outcome = self.output_processor.process(plan, result, now)
        if self.handovers is not None and self.handovers.leaving:
            self.handovers.answered()
        if plan.is_alone and (cleared := pop_cleared(plan.seqs[0].group)):
            outcome.cleared.append(cleared)
            plan.seqs[0].group.timeline.add(EventKind.CLEARED, now, step_id=plan.step_id)
        return outcome

    def _observe_costs(
        self, plan: StepPlan, timings: StepTimings, now: float, *, seconds: float
    ) -> None:
        if plan.has_sections or self.cost.has_seen_swaps:
            self._swapping.observe(plan, swap_ns=timings.swap_ns)
        num_seqs, num_tokens = len(plan.seqs), plan.total_tokens
        division, forward_ns = self.planner.division, timings.forward_ns
        division.observe(num_tokens=num_tokens, forward_ns=forward_ns)
        if not plan.num_before:
            division.observe_alone(total_ns=1e9 * (now - plan.planned_at), forward_ns=forward_ns)
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
        self.books.decode_columns.release(group)
        for seq in () if group.awaits_answers else group.unfinished:
            if seq.branch == index:
                seq.truncate(keep_tokens)
                self.books.sequence_release.end(seq, FinishReason.STOP_STRING)
        return group.is_finished

    def abort(self, group: SequenceGroup) -> None:
        """Ends a group that runs or is swapped. Blocks come back once no step holds them."""
        self.books.decode_columns.release(group)
        self.books.sequence_release.end_all(group)

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes; False, changing nothing, unless all work has ended."""
        if self.has_unfinished:
            return False
        return self.blocks.reset_prefix_cache() if self.store is None else self.store.reset()

    def clear_prefix_cache(
        self, tenant: str | None, on_cleared: OnCleared, mark: ClearMark | None = None
    ) -> None:
        """Lets no cached prefix be found, also while requests run, and clears the store.

        What running requests compute from now on may be found again.

        Args:
            tenant: whose blocks are removed from the store; None is all. The pools, which do not
                know whose blocks they have, forget all.
            on_cleared: called when the store is cleared.
            mark: a store that has made this clear is left as it is.
        """
        self.blocks.forget_prefixes([*self._queues.running, *self._queues.swapped])
        if self.store is None:
            on_cleared("")
        else:
            self.store.clear(tenant, on_cleared, mark)

    def drain(self) -> None:
        """Admits no new groups from now on; groups that have started still return."""
        self._queues.drain()
        if self.store is not None:
            self.store.drain()

    def set_role(self, role: WorkerRole) -> None:
        """Says which part of the work is this worker's from now on; what runs stays, or moves."""
        self._queues.only_decodes = role is WorkerRole.DECODE
        if self._queues.only_decodes:
            self.admission.release(self._queues)
        if self.handovers is not None:
            self.handovers.only_prefills = role is WorkerRole.PREFILL
            self.handovers.peer.endpoint.wake()

    def evacuate(self) -> list[SequenceGroup]:
        """Takes everything out that had not ended: the worker is gone, and its KV with it.

        The scheduler is not used afterwards; the groups can be recomputed elsewhere.
        """
        self.books.decode_columns.release_all()
        self.grammars.leave()
        if self.store is not None:
            self.store.abandon()
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
        arithmetic = self.planner.arithmetic_changes.arithmetic
        yield from self.blocks.samples(cache_dtype=arithmetic.kv_cache_dtype if arithmetic else "")
        for part in (self.output_processor, self.preemption, self.planner, self.steps, self.cost):
            yield from part.samples()
        if self.store is not None:
            yield from self.store.samples()

    @property
    def has_enough_in_flight(self) -> bool:
        """True if no further step is to be planned until one is answered.

        While groups come or leave, a long step is enough: copies begin with the next one, and the
        worker waits for that only as long as a message takes.
        """
        if len(self.inflight) >= self.limits.max_in_flight:
            return True
        handovers = self.handovers
        if handovers is None or not (handovers.coming or handovers.leaving):
            return False
        return self.inflight.expected_s() >= LONG_STEP_S and not self.planner.division.is_used

    @property
    def peer(self) -> TransferPeer | None:
        """Returns what the worker lends to others and reads of them; None if it does neither."""
        return self.store.peer if self.store is not None else None

    @property
    def handovers(self) -> WorkerHandovers | None:
        """Groups that come to the worker from others, and that leave it; None if none can."""
        return self.store.handovers if self.store is not None else None

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
        on_worker = self.running or self.swapped or self.loading or self.inflight
        return bool(on_worker or self.admission.started)

    def counters(self, seq: Sequence) -> Counters:
        """Returns how far a sequence is, wherever its counters are kept."""
        return self.books.decode_columns.counters(seq)

    def holds(self, group: SequenceGroup) -> bool:
        """Says whether the group runs or is swapped here."""
        return group in self._queues

    def can_ever_take(self, group: SequenceGroup) -> bool:
        """Says whether a waiting group could come in here, if not now then when others are gone."""
        return (self._queues.takes_new or group.has_started) and self._group_selection.can_ever_run(
            group
        )

    def most_new_tokens(self, group: SequenceGroup) -> int:
        """Returns the greatest max_tokens of a new group that is taken here; else below 1."""
        return self._group_selection.most_new_tokens(group) if self._queues.takes_new else 0

    @property
    def effective_max_model_len(self) -> int:
        """Tokens of the longest sequence of a new group that is taken here; 0 if none is."""
        return self.blocks.sizes.longest_alone if self._queues.takes_new else 0

    def check(self) -> None:
        """Asserts that blocks are conserved and each group is in one queue, in its status."""
        self._queues.check()
        if self.store is not None:
            self.store.check()
        self.books.decode_columns.check()
        queued = {seq for group in self.running + self.swapped for seq in group.sequences}
        self.blocks.check(queued | self.books.sequence_release.draining)
        self.books.worker_state.check(queued)
        self.grammars.check()

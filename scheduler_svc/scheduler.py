"""Plans the steps of one worker: how many tokens each sequence computes, in which blocks.

Pure planning: no clock, no I/O. `schedule` books what it plans; `update` takes the result. Two
steps may be planned before the first is answered, so a sequence counts its tokens in flight, and
while there are any it is not preempted, forked or freed.

Its parts own the state: `GroupQueues` the queue of each group, `BlockSpaceManager` the blocks,
`WorkerState` what the worker knows, `DecodeColumns` the counters of sequences that only decode.
`Planner`, `GroupSelection` and `Preemption` decide one step; `OutputProcessor` says what its answer
means, and `SequenceRelease` ends sequences.
"""

from collections import deque
from collections.abc import Set

from contract.step_result import StepResult, StepTimings
from contract.updates import FinishReason
from scheduler_svc.config import CacheShape, PreemptionMode, StepLimits
from scheduler_svc.insight.stats import RequestStats, StepStats
from scheduler_svc.kv.block_manager import BlockSpaceManager
from scheduler_svc.kv.cost_model import CostModel
from scheduler_svc.planning.decode_columns import DecodeColumns
from scheduler_svc.planning.group_selection import GroupSelection
from scheduler_svc.planning.plan import StepPlan
from scheduler_svc.planning.planner import Planner
from scheduler_svc.planning.preemption import Preemption
from scheduler_svc.planning.sequence_release import SequenceRelease
from scheduler_svc.planning.suspect_turns import Trials, pop_cleared
from scheduler_svc.planning.swapping import Swapping
from scheduler_svc.planning.token_budget import token_budget
from scheduler_svc.planning.worker_grammars import WorkerGrammars
from scheduler_svc.planning.worker_state import WorkerState
from scheduler_svc.queue.admission_queue import AdmissionQueue
from scheduler_svc.queue.worker_queues import GroupQueues
from scheduler_svc.requests.sequence import Counters, Sequence, SequenceStatus
from scheduler_svc.requests.sequence_group import SequenceGroup
from scheduler_svc.requests.timeline import EventKind
from scheduler_svc.results.output_processor import OutputProcessor
from scheduler_svc.results.step_outcome import StepOutcome


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
        worker_name: str = "",
        grammar_bytes: int,
    ) -> None:
        self.worker_name = worker_name
        self.limits = limits
        self.token_budget = limits.max_num_batched_tokens
        """Tokens of the next step."""
        self._memory_tokens: int | None = None
        self.cost = cost or CostModel()
        self.inflight: deque[StepPlan] = deque()
        self.num_steps = 0
        self.steps = StepStats()
        self.request_stats = RequestStats()  # of those that ended here
        self.blocks = blocks = BlockSpaceManager(
            block_size=cache.block_size,
            num_gpu_blocks=cache.num_gpu_blocks,
            num_cpu_blocks=cache.num_cpu_blocks,
            num_watermark_blocks=cache.num_watermark_blocks,
            max_model_len=cache.max_model_len,
            prefix_caching=cache.prefix_caching,
            cpu_prefix_cache=cache.cpu_prefix_cache,
            costs=self.cost,
        )
        self._queues = queues = GroupQueues(admission)
        self._decode_columns = decode_columns = DecodeColumns(blocks, admission)
        self._worker_state = worker_state = WorkerState(blocks)
        self._sequence_release = SequenceRelease(
            queues=queues, blocks=blocks, worker_state=worker_state
        )
        self.grammars = WorkerGrammars(
            queues=queues, sequence_release=self._sequence_release, memory_bytes=grammar_bytes
        )
        self._trials = Trials(queues, worker_name=worker_name)
        self._group_selection = GroupSelection(
            limits=limits,
            queues=queues,
            blocks=blocks,
            sequence_release=self._sequence_release,
            grammars=self.grammars,
            trials=self._trials,
        )
        self._swapping = Swapping(
            queues=queues,
            blocks=blocks,
            group_selection=self._group_selection,
            sequence_release=self._sequence_release,
            cost=self.cost,
            mode=preemption_mode,
        )
        self._preemption = Preemption(
            queues=queues,
            blocks=blocks,
            decode_columns=decode_columns,
            worker_state=worker_state,
            sequence_release=self._sequence_release,
            swapping=self._swapping,
        )
        self._planner = Planner(
            limits=limits,
            queues=queues,
            group_selection=self._group_selection,
            blocks=blocks,
            decode_columns=decode_columns,
            worker_state=worker_state,
            preemption=self._preemption,
            swapping=self._swapping,
            trials=self._trials,
            worker_name=worker_name,
        )
        self._output_processor = OutputProcessor(
            blocks=blocks,
            decode_columns=decode_columns,
            worker_state=worker_state,
            sequence_release=self._sequence_release,
            admission=admission,
            eos_token_ids=eos_token_ids,
        )

    # Steps

    def schedule(self, now: float) -> StepPlan | None:
        """Plans one step and books its blocks; None if there is nothing to do now."""
        trials, worker_state = self._trials, self._worker_state
        has_suspects = trials.begun is not None or bool(self._queues.admission.suspects)
        if has_suspects and trials.must_wait(self.inflight):
            return None
        plan = StepPlan(
            step_id=self.num_steps + 1,
            token_budget=self.token_budget,
            planned_at=now,
        )
        if has_suspects:
            self._fill_in_turns(plan, now)
        else:
            self._planner.fill(plan, now)
        if self.grammars.wanted is not None or self._queues.admission.parked.num_groups:
            self.grammars.plan()
        is_empty = self._planner.is_empty(plan)
        if self.blocks.has_copies:
            self._swapping.finish_plan(plan)
        if is_empty:
            return None
        if worker_state.forks or worker_state.forget_seq_ids:
            worker_state.finish_plan(plan)
        self.num_steps = plan.step_id
        self.inflight.append(plan)
        trials.is_turn = not plan.is_alone
        return plan

    def _fill_in_turns(self, plan: StepPlan, now: float) -> None:
        """Plans for a suspect or for all others, whose turn it is; else for those with work."""
        tries = not self.inflight and self._trials.has_work
        if tries and self._trials.is_turn:
            self._planner.fill_alone(plan, now)
        if not plan.is_alone:
            self._planner.fill(plan, now)
        if tries and self._planner.is_empty(plan) and not self._trials.is_turn:
            self._planner.fill_alone(plan, now)

    def pop_failed(self) -> list[SequenceGroup]:
        """Returns the groups that planning had to end, each once."""
        return self._sequence_release.pop_failed() if self._sequence_release.failed else []

    def update(self, result: StepResult, now: float) -> StepOutcome:
        """Processes the result of the oldest planned step."""
        plan = self.inflight.popleft()
        assert plan.step_id == result.step_id, "results come in the order of the steps"
        if result.max_num_batched_tokens != self._memory_tokens:
            self._memory_tokens = result.max_num_batched_tokens
            self.token_budget = token_budget(self.limits, memory_tokens=self._memory_tokens)
        self._observe_costs(plan, result.timings)
        self.steps.observe(plan, result, now)
        outcome = self._output_processor.process(plan, result, now)
        if plan.is_alone and (cleared := pop_cleared(plan.seqs[0].group)):
            outcome.cleared.append(cleared)
            plan.seqs[0].group.timeline.add(EventKind.CLEARED, now, step_id=plan.step_id)
        return outcome

    def _observe_costs(self, plan: StepPlan, timings: StepTimings) -> None:
        if plan.has_sections or self.cost.has_seen_swaps:
            self._swapping.observe(plan, swap_ns=timings.swap_ns)
        num_seqs, num_tokens = len(plan.seqs), plan.total_tokens
        if num_tokens > num_seqs:
            self.cost.observe_prefill(
                num_seqs=num_seqs, num_tokens=num_tokens, forward_ns=timings.forward_ns
            )

    # Ending

    def stop_sequence(self, group: SequenceGroup, *, index: int, keep_tokens: int) -> bool:
        """Ends a branch at a stop string; returns whether that ended the group.

        Does nothing for a branch that is unknown or has ended, and while the group awaits answers.
        """
        self._decode_columns.release(group)
        for seq in () if group.awaits_answers else group.unfinished:
            if seq.branch == index:
                seq.truncate(keep_tokens)
                self._sequence_release.end(seq, FinishReason.STOP_STRING)
        return group.is_finished

    def abort(self, group: SequenceGroup) -> None:
        """Ends a group that runs or is swapped. Blocks come back once no step holds them."""
        self._decode_columns.release(group)
        self._sequence_release.end_all(group)

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes; False, changing nothing, unless all work has ended."""
        return not self.has_unfinished and self.blocks.reset_prefix_cache()

    def drain(self) -> None:
        """Admits no new groups from now on; groups that have started still return."""
        self._queues.drain()

    def evacuate(self) -> list[SequenceGroup]:
        """Takes everything out that had not ended: the worker is gone, and its KV with it.

        The scheduler is not used afterwards; the groups can be recomputed elsewhere.
        """
        self._decode_columns.release_all()
        self.grammars.leave()
        groups = self._queues.remove_all()
        for group in groups:
            for seq in group.sequences:
                self.blocks.free(seq)
            group.forget_progress()
            group.set_status(SequenceStatus.WAITING)
        return groups

    # Looking inside

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
    def is_accepting(self) -> bool:
        """True if groups that no worker has worked on may be admitted."""
        return self._queues.is_accepting

    @property
    def has_unfinished(self) -> bool:
        """True if a group is running, swapped or to be recomputed, or a step is in flight."""
        return bool(self.running or self.swapped or self.inflight or self.admission.started)

    @property
    def num_preemptions(self) -> int:
        return self._preemption.num_preemptions

    @property
    def num_recomputes(self) -> int:
        """Preemptions whose KV is recomputed; the others were swapped."""
        return self._preemption.num_recomputes

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompts that have had their first token."""
        return self._output_processor.num_prompt_tokens

    @property
    def num_generated_tokens(self) -> int:
        return self._output_processor.num_generated_tokens

    @property
    def num_prefix_queries(self) -> int:
        """Tokens that were looked for in the prefix cache; `num_prefix_hits` were found."""
        return self._planner.num_prefix_queries

    @property
    def num_prefix_hits(self) -> int:
        return self._planner.num_prefix_hits

    @property
    def num_cpu_prefix_hits(self) -> int:
        """Tokens that were found in the CPU pool and copied back, a part of `num_prefix_hits`."""
        return self._planner.num_cpu_prefix_hits

    @property
    def draining(self) -> Set[Sequence]:
        """Sequences that have ended and still hold blocks, for a step in flight holds them."""
        return self._sequence_release.draining

    @property
    def decode_column_seqs(self) -> list[Sequence]:
        """The sequences of the decode columns, in order of its rows."""
        return self._decode_columns.seqs

    @property
    def forget_seq_ids(self) -> list[int]:
        """Sequences that the worker forgets with the next step."""
        return list(self._worker_state.forget_seq_ids)

    def counters(self, seq: Sequence) -> Counters:
        """Returns how far a sequence is, wherever its counters are kept."""
        return self._decode_columns.counters(seq)

    def holds(self, group: SequenceGroup) -> bool:
        """Says whether the group runs or is swapped here."""
        return group in self._queues

    def can_ever_take(self, group: SequenceGroup) -> bool:
        """Says whether a waiting group could come in here, if not now then when others are gone."""
        return (self.is_accepting or group.has_started) and self._group_selection.can_ever_run(
            group
        )

    def most_new_tokens(self, group: SequenceGroup) -> int:
        """Returns the greatest max_tokens of a new group that is taken here; else below 1."""
        return self._group_selection.most_new_tokens(group) if self.is_accepting else 0

    @property
    def effective_max_model_len(self) -> int:
        """Tokens of the longest sequence of a new group that is taken here; 0 if none is."""
        return self.blocks.longest_alone if self.is_accepting else 0

    def check(self) -> None:
        """Asserts that blocks are conserved and each group is in one queue, in its status."""
        self._queues.check()
        self._decode_columns.check()
        queued = {seq for group in self.running + self.swapped for seq in group.sequences}
        self.blocks.check(queued | self._sequence_release.draining)
        self._worker_state.check(queued)
        self.grammars.check()

"""Fills the plan of one step: decodes, then prefills, then swapped groups, then waiting ones.

Iteration-level scheduling follows Orca (Yu et al., OSDI 2022), mixing chunks of prefills with
decodes Sarathi-Serve (Agrawal et al., OSDI 2024). How much of the prompts goes along is not a fixed
budget of tokens as there but a share of what waits. A model whose attention sees both ways computes
each prompt whole: the next one that a step has no tokens left for begins another step, so that none
is passed by shorter ones.
"""

from collections.abc import Iterator

from signalbox_rpc.metrics.sample import Sample, counter
from signalbox_scheduler.kv.block_allocator import AllocStatus
from signalbox_scheduler.kv.prefix_cache import FoundBlock
from signalbox_scheduler.planning.adapter_turns import AdapterTurns
from signalbox_scheduler.planning.branch_recompute import BranchRecompute
from signalbox_scheduler.planning.mask_turns import MaskTurns
from signalbox_scheduler.planning.microbatch_planner import MicrobatchPlanner
from signalbox_scheduler.planning.numerics_changes import NumericsChanges
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.preemption import Preemption
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.planning.swapping import Swapping
from signalbox_scheduler.planning.token_budget import prompt_budget
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup, SequenceStatus
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.requests.wait_accounting import WaitReason


class Planner:
    """Decides how many tokens each sequence computes, and books their blocks."""

    def __init__(
        self, state: SchedulerState, *, preemption: Preemption, swapping: Swapping
    ) -> None:
        self.num_prefix_queries = 0  # tokens asked for, and found
        self.num_prefix_hits = 0
        self.num_cpu_prefix_hits = 0  # of those, found in the CPU pool
        config = state.config
        self._state = state
        self._limits = config.limits
        self._queues = state.queues
        self._selection = state.selection
        self._blocks = state.blocks
        self._decode_batch = state.decode_batch
        self._worker_state = state.worker_state
        self._drafts = state.drafts
        self._suspects = state.suspects
        self._preemption = preemption
        self._swapping = swapping
        self._adapter_turns = AdapterTurns(state.queues, config.limits.max_adapters)
        self._has_turns = False  # in the step that is being filled
        self.mask_turns = MaskTurns(
            state.queues, state.decode_batch, num_stages=config.limits.num_stages
        )
        self.microbatches = MicrobatchPlanner(config.limits.num_stages)
        self._branch_recompute = BranchRecompute(state, preemption=preemption)
        self._worker_name = config.identity.address
        self.numerics_changes = NumericsChanges(
            config.numerics, worker_name=self._worker_name, arithmetic=config.arithmetic
        )

    def samples(self) -> Iterator[Sample]:
        yield counter(
            "prefix_cache_queries", "Prompt tokens that were looked for.", self.num_prefix_queries
        )
        yield counter("prefix_cache_hits", "Prompt tokens that were found.", self.num_prefix_hits)
        yield counter(
            "cpu_prefix_cache_hits", "Of those, found in CPU memory.", self.num_cpu_prefix_hits
        )
        yield from self.numerics_changes.samples()
        yield from self.mask_turns.samples()

    def fill(self, plan: StepPlan, now: float) -> None:
        """Adds to an empty plan all that it has tokens, sequences and blocks for.

        A suspect and all other requests take turns; where one of them has no work, the other has
        the step.
        """
        suspects = self._suspects
        may_try = not plan.num_before and suspects.has_any and suspects.has_work
        if may_try and suspects.is_turn:
            self._fill_alone(plan, now)
        if not plan.is_alone:
            self._fill_together(plan, now)
        if may_try and not suspects.is_turn and self.is_empty(plan):
            self._fill_alone(plan, now)
        grammars = self._state.grammars
        if grammars.wanted is not None or self._queues.admission.parked.num_groups:
            grammars.plan()

    def _fill_together(self, plan: StepPlan, now: float) -> None:
        """Adds all groups but suspects."""
        if self._branch_recompute.incomplete:
            self._branch_recompute.make_room(plan, now)
        batch, queues, admission = self._decode_batch, self._queues, self._queues.admission
        self._has_turns, token_budget = self._adapter_turns.begin(plan), plan.token_budget
        self.mask_turns.begin(plan)
        if self._limits.max_draft_tokens:
            self._drafts.begin(plan)
        if self._has_turns or not batch.plan(plan):
            batch.release_all()
        all_in_batch = len(batch.seqs) == queues.num_sequence_slots
        if not all_in_batch or queues.swapped or admission.groups or plan.has_incoming:
            self._fill_beside_decodes(plan, now)
        if self._has_turns and self.is_empty(plan):
            self._take_other_turns(plan, token_budget, now)
        if plan.dear:
            self._finish_mask_turns(plan, now)
        if queues.only_decodes:
            return  # what waits does not wait for this worker
        if admission.groups or admission.waits.reason is not WaitReason.NEXT_STEP:
            admission.waits.record(self._what_waits(plan), now)

    def _take_other_turns(self, plan: StepPlan, token_budget: int, now: float) -> None:
        """Fills a plan for other adapters if what has its turn cannot compute, or has yielded."""
        for _ in range(len(self._queues.running)):  # at least as many as there are turns
            plan.token_budget = token_budget
            self._adapter_turns.begin(plan)
            self.mask_turns.begin(plan)
            self._fill_beside_decodes(plan, now)
            if not self.is_empty(plan):
                return

    def _finish_mask_turns(self, plan: StepPlan, now: float) -> None:
        """Books the turns. If the worker would be idle otherwise, no group sits the step out."""
        if self.is_empty(plan) and not plan.num_before:
            plan.dear = {}
            self._fill_beside_decodes(plan, now)
        if not self.is_empty(plan):
            self.mask_turns.finish(plan)

    def _fill_beside_decodes(self, plan: StepPlan, now: float) -> None:
        self._add_decodes(plan, now)
        if self.microbatches.is_used or (plan.seqs and self._limits.prefill_spread_steps > 1):
            self._spread_prompts(plan)
        self._add_prefills(plan)
        if not plan.is_short_of_blocks:  # a group that was just preempted must not preempt others
            self._add_incoming(plan, now)
            self._add_swapped(plan, now)
            self._add_waiting(plan, now)
        if not self.is_empty(plan):
            self._update_decode_batch(plan)

    def _fill_alone(self, plan: StepPlan, now: float) -> None:
        """Adds to an empty plan the work of one suspect, which comes in if none is tried yet."""
        plan.is_alone, plan.adapters = True, None
        if self._branch_recompute.incomplete:
            self._branch_recompute.make_room(plan, now)
        if self._suspects.current is None:
            self._bring_in_suspect(plan, now)
        else:
            self._add_decodes(plan, now)
            self._add_prefills(plan)
        plan.is_alone = bool(plan.seqs)
        if plan.is_alone:
            self._update_decode_batch(plan)
        if plan.is_alone and self._queues.admission.groups:
            self._queues.admission.waits.record(WaitReason.SUSPECT, now)

    def is_empty(self, plan: StepPlan) -> bool:
        """Returns whether the worker has nothing to do; it may swap groups that compute later."""
        return not plan.seqs and not self._blocks.copies.has_swaps

    def _update_decode_batch(self, plan: StepPlan) -> None:
        """Moves decoding groups into the decode batch; all leave it while blocks are short."""
        if plan.is_short_of_blocks:
            self._decode_batch.release_all()
            return
        # A step of the decode batch has all of it.
        if self.microbatches.is_used or self._has_turns:
            return
        others = plan.seqs[len(plan.decode_ids) :]
        decoding = dict.fromkeys(seq.group for seq in others if seq.decode_index < 0)  # in order
        self._decode_batch.join(
            group
            for group in decoding
            if group not in plan.dear
            and not self._drafts.speculates(group)
            and self._decode_batch.can_join(group)
        )

    # Running groups

    def _add_decodes(self, plan: StepPlan, now: float) -> None:
        """Gives each sequence that has one token left its token; none waits for a prefill."""
        left = self._most_decodes(plan)
        others = [group for group in self._queues.running if not group.is_in_decode_batch]
        for group in others:  # the last of them may cease to run meanwhile
            if left <= 0:
                return
            for seq in group.sequences if plan.takes(group) else ():
                if not self._can_decode(seq, plan):
                    continue
                num_drafts = self._drafts.book(plan, seq) if group.max_drafts else 0
                if num_drafts or self._preemption.make_room(seq, plan, now):
                    self._worker_state.add(plan, seq, 1, num_drafts=num_drafts)
                    left = min(left - 1, plan.token_budget)
                    if left <= 0:
                        return

    def _most_decodes(self, plan: StepPlan) -> int:
        """Returns how many decodes the step takes beside those of the decode batch."""
        if not self.microbatches.is_used:
            return plan.token_budget
        decoding = [
            not seq.num_inflight_samples
            for group in self._queues.running
            for seq in group.sequences
            if seq.status is SequenceStatus.RUNNING and seq.num_remaining_tokens <= 1
        ]
        num_drawing = sum(any(before.num_samples) for before in self._state.in_flight)
        most = self.microbatches.most_decodes(
            num_decodes=len(decoding), num_ready=sum(decoding), num_steps=num_drawing
        )
        return min(plan.token_budget, most)

    def _can_decode(self, seq: Sequence, plan: StepPlan) -> bool:
        """Says whether a sequence may get a token; pipeline stages know none before its answer."""
        waits = self.microbatches.is_used and seq.num_inflight_samples
        waits = waits or (seq.num_inflight_drafts and self._drafts.must_wait(seq))
        return not waits and _can_decode(seq, plan)

    def _spread_prompts(self, plan: StepPlan) -> None:
        """Leaves what a step that others wait for, or that passes through stages, takes along of
        prompts."""
        num_tokens = self._queues.admission.num_prompt_tokens
        for group in self._queues.running:
            if not group.is_in_decode_batch and plan.takes(group):
                num_tokens += sum(
                    seq.num_remaining_tokens
                    for seq in group.sequences
                    if seq.status is SequenceStatus.RUNNING and seq.num_remaining_tokens > 1
                )
        budget = self.microbatches.most_prompt_tokens(num_tokens)
        if plan.seqs and self._limits.prefill_spread_steps > 1:
            spread = prompt_budget(
                self._limits, num_prompt_tokens=num_tokens, num_decodes=len(plan.seqs)
            )
            budget = min(budget, spread)
        plan.token_budget = min(plan.token_budget, budget)

    def _add_prefills(self, plan: StepPlan) -> None:
        """Spends what the decodes left on prompts, in chunks."""
        for group in list(self._queues.running):  # the last of them may cease to run meanwhile
            if group.is_in_decode_batch or group in plan.deferred_victims or not plan.takes(group):
                continue
            for seq in group.sequences:
                if not plan.token_budget:
                    return
                waits = seq.status is SequenceStatus.RUNNING and seq.num_remaining_tokens > 1
                if waits and self._has_tokens(plan, seq):
                    self._add_prefill(plan, seq)

    def _has_tokens(self, plan: StepPlan, seq: Sequence) -> bool:
        """Says whether a step takes a chunk of a prompt; if not, it takes no more of others.

        A prompt that is not cut may exceed the budget alone.
        """
        if self._limits.cuts_prompts or not plan.seqs:
            return True
        if seq.num_remaining_tokens > plan.token_budget:
            plan.token_budget = 0
        return plan.token_budget > 0

    def _add_prefill(self, plan: StepPlan, seq: Sequence) -> None:
        starts = not seq.block_table
        if starts and not self._start_sibling(plan, seq):
            return
        self._add_chunk(plan, seq, num_cached_tokens=seq.num_computed_tokens if starts else 0)

    def _add_chunk(self, plan: StepPlan, seq: Sequence, *, num_cached_tokens: int = 0) -> None:
        num_new_tokens = seq.num_remaining_tokens
        if self._limits.cuts_prompts:
            num_new_tokens = min(num_new_tokens, plan.token_budget)
            num_new_tokens = self._blocks.states.whole_rows(seq, num_new_tokens)
        num_new_tokens = self._with_blocks(plan, seq, num_new_tokens)
        if not num_new_tokens:
            return
        self._worker_state.append_slots(plan, seq, num_new_tokens)
        self._worker_state.add(plan, seq, num_new_tokens)
        seq.group.timeline.add(
            EventKind.PREFILL,
            plan.planned_at,
            step_id=plan.step_id,
            num_tokens=num_new_tokens,
            num_cached_tokens=num_cached_tokens,
        )

    def _with_blocks(self, plan: StepPlan, seq: Sequence, num_new_tokens: int) -> int:
        """Returns how many of a prompt's next tokens there are blocks of windows for.

        Groups behind it yield if there are none; without such groups it waits.
        """
        while not (most := self._blocks.most_new_tokens(seq, num_new_tokens)):
            if not self._preemption.preempt_behind(seq.group, plan, plan.planned_at):
                break
        return most

    def _start_sibling(self, plan: StepPlan, seq: Sequence) -> bool:
        """Lets a branch that is recomputed share what a sibling, or the cache, has of it."""
        prefix = self._branch_recompute.prefix_of(seq)
        if prefix is None:
            return False
        if not self._blocks.can_start(seq, prefix):
            plan.is_short_of_blocks = True
            return False
        self._start(seq, prefix)
        return True

    def _start(self, seq: Sequence, prefix: list[FoundBlock]) -> None:
        seq.num_computed_tokens = self._blocks.num_tokens(len(prefix))
        self._blocks.start(seq, prefix)
        width = self._blocks.num_groups
        rows = {index // width for index, found in enumerate(prefix) if not found.is_on_gpu}
        num_cpu_hits = len(rows) * self._blocks.block_size
        self.num_cpu_prefix_hits += num_cpu_hits
        seq.group.num_cpu_cached_tokens += num_cpu_hits
        is_prompt = not seq.output_token_ids and not seq.group.num_preemptions
        if is_prompt and seq.group.times.first_token is None:
            seq.group.num_cached_tokens = seq.num_computed_tokens
            seq.group.num_cached_on_cpu = num_cpu_hits
        self.num_prefix_queries += seq.num_tokens
        self.num_prefix_hits += seq.num_computed_tokens

    # Groups that come in

    def _add_incoming(self, plan: StepPlan, now: float) -> None:
        """Takes in groups of other workers, whose last blocks come with this step."""
        for group in self._state.connector.admit_ready(now) if plan.has_incoming else ():
            group.max_length = self._blocks.sizes.longest(group)
            self._drafts.take(group)
            if self._admits(plan, group):
                for seq in group.unfinished:
                    self._continue_swapped(plan, seq)

    def _add_swapped(self, plan: StepPlan, now: float) -> None:
        while plan.token_budget and (group := self._swapping.pop_group()):
            self._resume(group, now)
            group.timeline.add(
                EventKind.RESUMED,
                now,
                step_id=plan.step_id,
                num_blocks=self._blocks.num_distinct_blocks(group),
                is_swap=True,
            )
            if self._admits(plan, group):
                for seq in group.unfinished:
                    self._continue_swapped(plan, seq)

    def _continue_swapped(self, plan: StepPlan, seq: Sequence) -> None:
        """Lets a sequence compute in the step that brings it back; a later step will do as well."""
        num_new_tokens = min(seq.num_remaining_tokens, plan.token_budget)
        if not seq.block_table or not num_new_tokens:
            return
        if self._blocks.can_append_slots(seq, num_new_tokens) is AllocStatus.OK:
            self._worker_state.append_slots(plan, seq, num_new_tokens)
            self._worker_state.add(plan, seq, num_new_tokens)

    def _add_waiting(self, plan: StepPlan, now: float) -> None:
        admission = self._queues.admission
        while plan.token_budget and admission.groups and not self._queues.swapped:
            group = self._selection.next_group()
            if group is None or not self._has_tokens(plan, group.unfinished[0]):
                return
            self._bring_in(group, plan, now)

    def _bring_in(self, group: SequenceGroup, plan: StepPlan, now: float) -> None:
        """Takes a group out of the admission queue, and adds its first chunk if it may compute."""
        admission = self._queues.admission
        admission.pop(group)
        group.timeline.scheduled(
            admission.waits,
            now,
            worker=self._worker_name,
            stages=self._state.stages,
            step_id=plan.step_id,
            resumes=group.has_started,
        )
        self.numerics_changes.record(group)
        is_new = not group.has_started
        self._resume(group, now)
        seq = group.unfinished[0]
        self._start(seq, self._blocks.find_prefix(seq))
        self._branch_recompute.record(group)
        if is_new:  # what is computed again is not the tenant's to pay
            num_new_tokens = group.num_prompt_tokens - group.num_cached_tokens
            admission.charge(group.flow, [group], num_prompt_tokens=num_new_tokens)
        if self._admits(plan, group):
            self._add_chunk(plan, seq, num_cached_tokens=seq.num_computed_tokens)

    def _bring_in_suspect(self, plan: StepPlan, now: float) -> None:
        group = self._selection.next_suspect()
        if group is not None:
            self._bring_in(group, plan, now)
            self._suspects.begin(group)

    def _what_waits(self, plan: StepPlan) -> WaitReason:
        """Says why this step leaves groups in the admission queue."""
        admission = self._queues.admission
        if not admission.groups:
            return WaitReason.NEXT_STEP
        if admission.parked.num_groups == len(admission.groups):
            return WaitReason.GRAMMAR
        if plan.is_short_of_blocks:
            return WaitReason.BLOCKS
        if self._queues.swapped:
            return WaitReason.SWAPPED_FIRST
        return self._selection.obstacle if plan.token_budget else WaitReason.TOKENS

    def _admits(self, plan: StepPlan, group: SequenceGroup) -> bool:
        """Returns whether a group that comes to run may compute at once, without a turn."""
        return self.mask_turns.admits(plan, group) and self._adapter_turns.admits(plan, group)

    def _resume(self, group: SequenceGroup, now: float) -> None:
        group.max_length = self._blocks.sizes.longest(group)
        self._drafts.take(group)
        self._queues.run(group)
        group.times.resume(now)


def _can_decode(seq: Sequence, plan: StepPlan) -> bool:
    group = seq.group
    if seq.status is not SequenceStatus.RUNNING or seq.num_remaining_tokens != 1:
        return False
    if seq.num_inflight_samples and group.awaits_answers:
        return False  # its next token depends on which branch it becomes, or on the others' draws
    is_planned_out = seq.num_tokens + seq.num_inflight_samples >= group.max_length
    return not is_planned_out and group not in plan.deferred_victims

"""Plans the steps of one worker: who computes how many tokens, in which blocks.

Pure planning: no clock, no I/O. `schedule` books what it plans; `update` takes the answer. Two
steps may be planned before the first is answered, so a sequence counts its tokens in flight, and
while there are any it is not preempted, forked or freed. Iteration-level scheduling follows Orca
(Yu et al., OSDI 2022), mixed chunks Sarathi-Serve (OSDI 2024), preemption vLLM (SOSP 2023, 4.5).
"""

import bisect
import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator

from scheduler_svc.admission import AdmissionQueue
from scheduler_svc.block_manager import AllocStatus, BlockSpaceManager
from scheduler_svc.config import CacheShape, PreemptionMode, StepLimits
from scheduler_svc.cost import CostModel
from scheduler_svc.errors import FailureCode, RequestFailure
from scheduler_svc.plan import (
    ForkPlan,
    StepAnswer,
    StepOutcome,
    StepPlan,
    TablePatch,
    stop_reason,
)
from scheduler_svc.sequence import (
    FinishReason,
    Sequence,
    SequenceGroup,
    SequenceStatus,
    length_limit,
)
from scheduler_svc.steady import SteadyLane

logger = logging.getLogger(__name__)

_seq_ids = itertools.count(1)  # unique in the process, so that a group may move between workers

LOOK_AHEAD = 8  # groups that a worker looks past when it is too small for the first


class Scheduler:
    """One worker's queues and blocks.

    `running` and `swapped` are in order of priority; who is last yields first. Groups come out of
    `admission`, which the workers share, and go back there when they are preempted by recompute.
    """

    def __init__(
        self,
        *,
        limits: StepLimits,
        cache: CacheShape,
        admission: AdmissionQueue,
        preemption_mode: PreemptionMode = PreemptionMode.AUTO,
        cost: CostModel | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.limits = limits
        self.admission = admission
        self.cost = cost or CostModel()
        self.running: list[SequenceGroup] = []
        self.swapped: list[SequenceGroup] = []
        self.inflight: deque[StepPlan] = deque()
        self.is_accepting = True
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.num_prefix_queries = 0  # tokens asked for, and found
        self.num_prefix_hits = 0
        self.blocks = BlockSpaceManager(
            block_size=cache.block_size,
            num_gpu_blocks=cache.num_gpu_blocks,
            num_cpu_blocks=cache.num_cpu_blocks,
            num_watermark_blocks=cache.num_watermark_blocks,
            max_model_len=cache.max_model_len,
            prefix_caching=cache.prefix_caching,
        )
        self._max_model_len = cache.max_model_len
        self._preemption_mode = preemption_mode
        self._eos_token_ids = eos_token_ids
        self._lane = SteadyLane(self.blocks)
        self._draining: set[Sequence] = set()  # finished, but a step in flight holds them
        self._forks: dict[Sequence, Sequence] = {}  # new branch to its parent, not sent yet
        self._forget: list[int] = []  # ids that the worker still knows
        self._failed: list[SequenceGroup] = []  # could never go on; see take_failed

    # Planning

    def schedule(self, now: float) -> StepPlan | None:
        """Plans one step and books its blocks; None if there is nothing to do."""
        plan = StepPlan(step_id=self.num_steps + 1, token_budget=self.limits.max_num_batched_tokens)
        if not self._lane.plan(plan):
            self._lane.release_all()
        self._schedule_decodes(plan, now)
        self._schedule_prefills(plan, now)
        if not plan.is_short_of_blocks:  # who was just evicted must not push others back in
            self._schedule_swapped(plan, now)
            self._schedule_waiting(plan, now)
        if plan.is_empty:
            return None
        plan.forget, self._forget = self._forget, []
        self._settle(plan)
        self._forks.clear()  # their parents have moved on; who was not split off is sent in full
        self.num_steps = plan.step_id
        self.inflight.append(plan)
        return plan

    def _settle(self, plan: StepPlan) -> None:
        """Moves groups that have begun to decode to the lane; out of it while blocks are short."""
        if plan.is_short_of_blocks:
            self._lane.release_all()
            return
        decoding = {seq.group for seq in plan.seqs if seq.steady_row < 0}
        self._lane.join(group for group in decoding if self._lane.can_join(group))

    def _schedule_decodes(self, plan: StepPlan, now: float) -> None:
        """Gives each sequence that has one token left its token: nobody waits behind a prefill."""
        index = 0
        while index < len(self.running) and plan.token_budget:
            group = self.running[index]
            for seq in () if group.is_steady else group.sequences:
                if self._can_decode(seq, plan) and self._make_room(seq, plan, now):
                    self._add(plan, seq, 1, now)
                    if not plan.token_budget:
                        break
            index += 1

    def _can_decode(self, seq: Sequence, plan: StepPlan) -> bool:
        group = seq.group
        if seq.status is not SequenceStatus.RUNNING or seq.num_remaining_tokens != 1:
            return False
        if seq.num_inflight_samples and group.awaits_fork:
            return False  # its next token depends on which branch it becomes
        is_planned_out = seq.num_tokens + seq.num_inflight_samples >= group.end
        return not is_planned_out and group not in plan.yielding

    def _schedule_prefills(self, plan: StepPlan, now: float) -> None:
        """Spends what the decodes left on prompts, in chunks."""
        for group in self.running:
            if group.is_steady or group in plan.yielding:
                continue
            for seq in group.sequences:
                if not plan.token_budget:
                    return
                if seq.status is SequenceStatus.RUNNING and seq.num_remaining_tokens > 1:
                    self._prefill(plan, seq, now)

    def _prefill(self, plan: StepPlan, seq: Sequence, now: float) -> None:
        if not seq.block_table and not self._start_sibling(plan, seq):
            return
        self._add(plan, seq, min(seq.num_remaining_tokens, plan.token_budget), now)

    def _start_sibling(self, plan: StepPlan, seq: Sequence) -> bool:
        """Lets a branch that is recomputed share what a sibling, or the cache, has of it."""
        prefix = self.blocks.find_prefix(seq)
        num_prefix_tokens = self.blocks.num_prefix_tokens(seq.group)
        started = [other for other in seq.group.unfinished if other.block_table]
        ready = [  # by the steps before this one
            other
            for other in started
            if other.num_planned_tokens - plan.tokens_of(other) >= num_prefix_tokens
        ]
        num_shared = num_prefix_tokens // self.blocks.block_size
        if len(prefix) < num_shared:
            if started and not ready:
                return False
            prefix = ready[0].block_table[:num_shared] if ready else prefix
        if not self.blocks.can_start(seq, prefix):
            plan.is_short_of_blocks = True
            return False
        self._start(seq, prefix)
        return True

    def _start(self, seq: Sequence, prefix: list[int]) -> None:
        self.blocks.start(seq, prefix)
        if seq.group.times.first_token is None and not seq.group.num_preemptions:
            seq.group.num_cached_tokens = seq.num_computed_tokens
        self.num_prefix_queries += seq.num_tokens
        self.num_prefix_hits += seq.num_computed_tokens

    def _schedule_swapped(self, plan: StepPlan, now: float) -> None:
        while self.swapped and plan.token_budget:
            group = self.swapped[0]
            status = self.blocks.can_swap_in(group)
            if status is AllocStatus.LATER or not self._has_places(group):
                return
            del self.swapped[0]
            if status is AllocStatus.NEVER:
                self._fail_swapped(group)
                continue
            plan.swap_in += self.blocks.swap_in(group)
            self._resume(group, now)
            for seq in group.unfinished:
                self._continue_swapped(plan, seq, now)

    def _continue_swapped(self, plan: StepPlan, seq: Sequence, now: float) -> None:
        """Lets a sequence compute in the step that brings it back; a later step will do as well."""
        num_new_tokens = min(seq.num_remaining_tokens, plan.token_budget)
        if not seq.block_table or not num_new_tokens:
            return
        if self.blocks.can_append_slots(seq, num_new_tokens) is AllocStatus.OK:
            self._append_slots(plan, seq, num_new_tokens)
            self._add(plan, seq, num_new_tokens, now)

    def _fail_swapped(self, group: SequenceGroup) -> None:
        group.failure = RequestFailure(
            FailureCode.RESOURCE_EXHAUSTED, "the request no longer fits the worker's KV cache"
        )
        for seq in group.unfinished:
            self._end(seq, FinishReason.ERROR)
        self._failed.append(group)

    def _schedule_waiting(self, plan: StepPlan, now: float) -> None:
        while plan.token_budget and not self.swapped:
            group = self._next_waiting()
            if group is None:
                return
            self.admission.remove(group)
            self._resume(group, now)
            seq = group.unfinished[0]
            self._start(seq, self.blocks.find_prefix(seq))
            self._add(plan, seq, min(seq.num_remaining_tokens, plan.token_budget), now)

    def _next_waiting(self) -> SequenceGroup | None:
        """Returns the first group, or one behind it if this worker is too small for the first."""
        waiting = self.admission if self.is_accepting else self.admission.started
        for group in itertools.islice(waiting, LOOK_AHEAD):
            status = self.blocks.can_allocate(group)
            if status is AllocStatus.OK and self._has_places(group):
                return group
            if status is not AllocStatus.NEVER:
                return None
        return None

    def _has_places(self, group: SequenceGroup) -> bool:
        taken = sum(other.num_reserved_sequences for other in self.running) + len(self._draining)
        return taken + group.num_reserved_sequences <= self.limits.max_num_seqs

    def _resume(self, group: SequenceGroup, now: float) -> None:
        group.end = group.num_prompt_tokens + length_limit(group, self._max_model_len)
        group.set_status(SequenceStatus.RUNNING)
        bisect.insort(self.running, group, key=self.admission.priority)
        times = group.times
        if times.first_scheduled is None:
            times.first_scheduled = now
        if times.preempted_at is not None:
            times.preempted_s += now - times.preempted_at
            times.preempted_at = None

    def _add(self, plan: StepPlan, seq: Sequence, num_new_tokens: int, now: float) -> None:
        draws = num_new_tokens == seq.num_remaining_tokens
        (plan.running if seq.is_on_worker else plan.new).append(len(plan.seqs))
        plan.seqs.append(seq)
        plan.num_new_tokens.append(num_new_tokens)
        plan.num_samples.append(
            0 if not draws else seq.group.num_sequences if seq.group.awaits_fork else 1
        )
        plan.token_budget -= num_new_tokens
        if seq.is_on_worker:
            self._patch(plan, seq)
        seq.is_on_worker = True
        seq.num_sent_blocks = len(seq.block_table)
        seq.num_inflight_tokens += num_new_tokens
        seq.num_inflight_samples += draws

    def _patch(self, plan: StepPlan, seq: Sequence) -> None:
        if len(seq.block_table) > seq.num_sent_blocks:
            first = seq.num_sent_blocks
            plan.patches.append(TablePatch(seq.seq_id, first, seq.block_table[first:]))

    # Making room

    def _make_room(self, seq: Sequence, plan: StepPlan, now: float) -> bool:
        """Gives a sequence the block of its next token, at the cost of those behind it."""
        while self.blocks.can_append_slots(seq, 1) is not AllocStatus.OK:
            plan.is_short_of_blocks = True
            victim = self._victim(plan)
            if victim is None or victim.is_steady or victim.is_inflight:  # steady: in this step
                if victim is not None:
                    plan.yielding.append(victim)
                return False
            self._preempt(victim, plan, now)
            if victim is seq.group:
                return False
        self._append_slots(plan, seq, 1)
        return True

    def _victim(self, plan: StepPlan) -> SequenceGroup | None:
        """Returns who yields: the last in line. One victim at a time is waited for."""
        return None if plan.yielding else self.running[-1]

    def _append_slots(self, plan: StepPlan, seq: Sequence, num_new_tokens: int) -> None:
        self._split_off(plan, seq)
        index = seq.num_planned_tokens // self.blocks.block_size
        copy = self.blocks.append_slots(seq, num_new_tokens)
        if copy is None:
            return
        plan.copy.append(copy)
        if seq.is_on_worker:
            plan.patches.append(TablePatch(seq.seq_id, index, [copy.dst]))

    def _split_off(self, plan: StepPlan, seq: Sequence) -> None:
        """Tells the worker of a new branch, while its parent is where it was."""
        parent = self._forks.pop(seq, None)
        if parent is not None and parent.is_on_worker:
            fork = ForkPlan(parent.seq_id, seq.seq_id, seq.branch, seq.output_token_ids[-1])
            plan.forks.append(fork)
            seq.is_on_worker = True

    def _preempt(self, group: SequenceGroup, plan: StepPlan, now: float) -> None:
        self.running.remove(group)
        plan.preempted.append(group)
        self.num_preemptions += 1
        group.num_preemptions += 1
        group.times.preempted_at = now
        for seq in group.unfinished:
            self._forget_on_worker(seq)
        if self._is_swapped_rather(group):
            self._swap_out(group, plan)
        else:
            self._set_back(group)
        logger.info(
            "preempted %s: %d GPU blocks are free", group.request_id, self.blocks.gpu.num_free
        )

    def _is_swapped_rather(self, group: SequenceGroup) -> bool:
        """Chooses between swap and recompute; without room in the CPU pool it is recompute."""
        if self._preemption_mode is PreemptionMode.RECOMPUTE:
            return False
        if not self.blocks.can_swap_out(group):
            return False
        num_blocks = self.blocks.num_distinct_blocks(group)
        return self._preemption_mode is PreemptionMode.SWAP or self.cost.prefers_swap(
            num_blocks=num_blocks, num_tokens=num_blocks * self.blocks.block_size
        )

    def _swap_out(self, group: SequenceGroup, plan: StepPlan) -> None:
        plan.swap_out += self.blocks.swap_out(group)
        group.set_status(SequenceStatus.SWAPPED)
        bisect.insort(self.swapped, group, key=self.admission.priority)

    def _set_back(self, group: SequenceGroup) -> None:
        """Puts a group back among the waiting, its KV to be computed again."""
        for seq in group.unfinished:
            self.blocks.free(seq)
            seq.forget_progress()
        group.set_status(SequenceStatus.WAITING)
        self.admission.add(group)

    # Taking answers

    def update(self, answer: StepAnswer, now: float) -> StepOutcome:
        """Takes the answer to the oldest planned step."""
        plan = self.inflight.popleft()
        assert plan.step_id == answer.step_id, "steps are answered in order"
        self.cost.observe(plan, answer.timings)
        outcome = StepOutcome()
        if answer.is_one_for_each(plan) and all(plan.num_samples):
            self._update_decodes(plan, answer, outcome, now)
        else:
            self._lane.release(*{seq.group for seq in plan.seqs})
            self._update_each(range(len(plan.seqs)), plan, answer, outcome, now)
        return outcome

    def _update_decodes(
        self, plan: StepPlan, answer: StepAnswer, outcome: StepOutcome, now: float
    ) -> None:
        """Takes one token of each sequence: all of the lane at once, the others one by one."""
        steady = [i for i, seq in enumerate(plan.seqs) if seq.steady_row >= 0]
        if len(steady) < len(plan.seqs):
            others = [i for i, seq in enumerate(plan.seqs) if seq.steady_row < 0]
            self._update_each(others, plan, answer, outcome, now)
        seqs = [plan.seqs[i] for i in steady]
        token_ids = [answer.token_ids[i] for i in steady]
        may_end = self._lane.accept(seqs, token_ids)
        logprobs = map(answer.logprobs.get, steady) if answer.logprobs else itertools.repeat(None)
        outcome.tokens += zip(seqs, token_ids, logprobs, strict=False)
        self.num_generated_tokens += len(seqs)
        ending = [(seqs[i], reason) for i in may_end if (reason := self._end_reason(seqs[i]))]
        self._lane.release(*{seq.group for seq, _ in ending})
        for seq, reason in ending:
            self._finish(seq, reason, outcome, now)

    def _update_each(
        self,
        indices: Iterable[int],
        plan: StepPlan,
        answer: StepAnswer,
        outcome: StepOutcome,
        now: float,
    ) -> None:
        rows = answer.rows()
        for i in indices:
            seq, num_new_tokens, num_samples = (
                plan.seqs[i],
                plan.num_new_tokens[i],
                plan.num_samples[i],
            )
            seq.num_inflight_tokens -= num_new_tokens
            seq.num_computed_tokens += num_new_tokens
            seq.num_inflight_samples -= num_samples > 0
            if seq.is_finished:  # its extra tokens are trimmed
                if not seq.num_inflight_tokens:
                    self._draining.discard(seq)
                    self._release(seq)
                continue
            if seq.seq_id in answer.failures:
                self._fail(seq, answer.failures[seq.seq_id], outcome, now)
                continue
            self.blocks.publish(seq)
            if num_samples:
                self._accept(seq, rows.get(seq.seq_id, []), num_samples, answer, outcome, now)

    def _accept(
        self,
        seq: Sequence,
        rows: list[int],
        num_samples: int,
        answer: StepAnswer,
        outcome: StepOutcome,
        now: float,
    ) -> None:
        if len(rows) != num_samples:
            self._fail(seq, f"the worker drew {len(rows)} of {num_samples} tokens", outcome, now)
            return
        branches = [seq, *self._branch_off(seq, num_samples - 1)]
        for branch, row in zip(branches, rows, strict=True):
            outcome.tokens.append((branch, answer.token_ids[row], answer.logprobs.get(row)))
            self._accept_token(branch, answer.token_ids[row], outcome, now)

    def _branch_off(self, parent: Sequence, num_children: int) -> Iterator[Sequence]:
        """Splits off the other branches of a prompt that has just been computed."""
        children = [
            Sequence(
                seq_id=next_seq_id(),
                branch=parent.branch + 1 + i,
                group=parent.group,
                status=SequenceStatus.RUNNING,
                num_computed_tokens=parent.num_computed_tokens,
            )
            for i in range(num_children)
        ]
        for child in children:
            self.blocks.fork(parent, child)
            self._forks[child] = parent
            child.num_sent_blocks = len(parent.block_table)
            parent.group.sequences.append(child)
        return iter(children)

    def _accept_token(self, seq: Sequence, token_id: int, outcome: StepOutcome, now: float) -> None:
        group = seq.group
        if group.times.first_token is None:
            group.times.first_token = now
            self.num_prompt_tokens += group.num_prompt_tokens
        seq.output_token_ids.append(token_id)
        self.num_generated_tokens += 1
        if reason := self._end_reason(seq):
            self._finish(seq, reason, outcome, now)

    def _end_reason(self, seq: Sequence) -> FinishReason | None:
        """Says whether the newest token ends its sequence, and notes a stop token."""
        token_id = seq.output_token_ids[-1]
        reason = stop_reason(seq, token_id, eos_token_ids=self._eos_token_ids)
        if reason is not None:
            seq.stop_token_id = token_id
            return reason
        return FinishReason.LENGTH if seq.num_tokens >= seq.group.end else None

    def _fail(self, seq: Sequence, message: str, outcome: StepOutcome, now: float) -> None:
        """Ends a sequence by an error; before its fork it stands for all branches."""
        seq.error_message = message
        self.blocks.retract(seq)
        self._finish(seq, FinishReason.ERROR, outcome, now)

    def _finish(
        self, seq: Sequence, reason: FinishReason, outcome: StepOutcome, now: float
    ) -> None:
        group = seq.group
        group.times.last_token = now
        self._end(seq, reason)
        outcome.finished.append(seq)
        if group.is_finished:
            if all(other.finish_reason is FinishReason.ERROR for other in group.sequences):
                group.failure = RequestFailure(FailureCode.INTERNAL, seq.error_message)
            self._remove(group)
            outcome.ended.append(group)

    # Ending

    def stop_sequence(self, group: SequenceGroup, *, index: int, keep_tokens: int) -> bool:
        """Ends a branch at a stop string; returns whether that ended the group.

        A branch that is unknown or has ended already is left as it is.
        """
        self._lane.release(group)
        for seq in group.sequences:
            if seq.branch == index and not seq.is_finished and not group.awaits_fork:
                del seq.output_token_ids[keep_tokens:]
                self._end(seq, FinishReason.STOP_STRING)
                if group.is_finished:
                    self._remove(group)
                    return True
        return False

    def take_failed(self) -> list[SequenceGroup]:
        """Returns the groups that planning had to end, each once."""
        failed, self._failed = self._failed, []
        return failed

    def abort(self, group: SequenceGroup) -> None:
        """Ends a group that runs or is swapped. Blocks come back once no step holds them."""
        self._lane.release(group)
        for seq in group.unfinished:
            self._end(seq, FinishReason.ERROR)
        self._remove(group)

    def evacuate(self) -> list[SequenceGroup]:
        """Takes everything out that had not ended: the worker is gone, and its KV with it.

        The scheduler is not used afterwards; the groups can be recomputed elsewhere.
        """
        self._lane.release_all()
        groups = self.running + self.swapped
        for group in groups:
            for seq in group.sequences:
                seq.block_table = []
                seq.forget_progress()
            group.set_status(SequenceStatus.WAITING)
        self.running, self.swapped = [], []
        return groups

    def _remove(self, group: SequenceGroup) -> None:
        for queue in (self.running, self.swapped):
            if group in queue:
                queue.remove(group)

    def _end(self, seq: Sequence, reason: FinishReason) -> None:
        if seq.status is SequenceStatus.SWAPPED:
            self.blocks.free(seq)
        seq.finish(reason)
        if seq.num_inflight_tokens:
            self._draining.add(seq)
        else:
            self._release(seq)

    def _release(self, seq: Sequence) -> None:
        self.blocks.free(seq)
        self._forget_on_worker(seq)

    def _forget_on_worker(self, seq: Sequence) -> None:
        if seq.is_on_worker:
            self._forget.append(seq.seq_id)
            seq.is_on_worker = False

    # Looking inside

    @property
    def has_unfinished(self) -> bool:
        """Whether a group is running, swapped or to be recomputed, or a step is in flight."""
        return bool(self.running or self.swapped or self.inflight or any(self.admission.started))

    def holds(self, group: SequenceGroup) -> bool:
        return group in self.running or group in self.swapped

    def check(self) -> None:
        """Asserts that blocks are conserved and each group is in one queue, in its status."""
        for queue, status in (
            (self.running, SequenceStatus.RUNNING),
            (self.swapped, SequenceStatus.SWAPPED),
            (self.admission, SequenceStatus.WAITING),
        ):
            for group in queue:
                assert all(seq.status is status for seq in group.unfinished), group.request_id
                assert group.unfinished, f"{group.request_id} has ended and is queued"
        for group in self.admission:
            assert not any(seq.block_table for seq in group.sequences), group.request_id
        self._lane.check()
        queued = [seq for group in self.running + self.swapped for seq in group.sequences]
        self.blocks.check({*queued, *self._draining})


def next_seq_id() -> int:
    """Returns an id that no other sequence of this process has."""
    return next(_seq_ids)


def make_group(group: SequenceGroup) -> SequenceGroup:
    """Gives a new group its first sequence."""
    group.sequences.append(Sequence(seq_id=next_seq_id(), branch=0, group=group))
    return group

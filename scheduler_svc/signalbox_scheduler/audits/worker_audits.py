"""Audits on one worker: computes earlier answers again while the worker has nothing else to do.

An audit is a sequence in no queue, which shares no block. At most one of its steps is in flight,
and none is planned while a request is on the worker, so a new request waits for at most one step. A
paused audit keeps its blocks until requests may need them. The output to compare is the source of
its drafts, so that a step compares many tokens.
"""

import math
from collections.abc import Callable
from typing import Protocol

from signalbox_contract.step_result import StepResult
from signalbox_scheduler.audits.finding import (
    AuditEnd,
    AuditFinding,
    AuditLog,
    DropReason,
    TokenBits,
)
from signalbox_scheduler.audits.pace import Allowance, Pace
from signalbox_scheduler.audits.record import AuditRecord, make_sequence
from signalbox_scheduler.audits.running_audit import (
    AuditTurn,
    AuditUse,
    RunningAudit,
    keep_logits,
    take_draws,
)
from signalbox_scheduler.kv.block_allocator import AllocStatus, HoldKind
from signalbox_scheduler.kv.table_hold import TableHold
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.planning.step_audits import StepAudits

WITHOUT_DRAFTS = 10
"""One of so many audits draws token by token, without drafts."""
POLL_SLACK_S = 0.001
"""Added to the time at which an audit may begin, so that the driver does not poll too early."""
MAX_WAITING = 16
"""Most waiting requests whose blocks are summed up; an audit is dropped if more of them wait."""


class Records(Protocol):
    """Answers that wait for their audits; `SampledAudits` is the implementation."""

    log: AuditLog

    def find(self, worker: "WorkerAudits", now: float) -> AuditRecord | None:
        """Returns the next one that a worker is to audit."""

    def take(self, record: AuditRecord) -> None:
        """Removes one."""


class WorkerAudits(StepAudits):
    """The audits of one worker.

    Args:
        share: part of the worker's time that audits may take.
        wake: makes the worker's driver plan.
    """

    def __init__(
        self, state: SchedulerState, records: Records, *, share: float, wake: Callable[[], None]
    ) -> None:
        self.name = state.config.identity.address
        self.wake = wake
        self._state = state
        self._records = records
        self._log = records.log
        self._pace = Pace.of_rate(state.cost.prefill_tokens_per_s)
        self._allowance = Allowance(share)
        self._audit: RunningAudit | None = None
        self._next: AuditTurn | None = None
        """The next branch of an audit that has begun."""
        self._dropped: RunningAudit | None = None
        """An audit that was dropped while a step of it is in flight, which uses its blocks."""

    def takes(self, record: AuditRecord, now: float) -> bool:
        """Returns whether this worker can compute an answer again."""
        state, group = self._state, record.group
        is_able = record.arithmetic == state.config.arithmetic and state.queues.is_accepting
        has_parts = state.queues.admission.has_adapter(group) and state.grammars.has(group)
        is_slow = self._pace.is_too_slow(now)
        fits = self._num_blocks(record) <= state.blocks.gpu.num_blocks
        return is_able and has_parts and fits and not is_slow

    def _num_blocks(self, record: AuditRecord) -> int:
        sizes = self._state.blocks.sizes
        return sizes.most_of_sequence(sizes.num_rows(record.longest))

    # Planning

    def begin_step(self) -> None:
        audit = self._audit
        if audit is not None and self._can_go_on(audit) and not self._leaves_room():
            self._drop(DropReason.BLOCKS)

    def _leaves_room(self) -> bool:
        """Returns whether all blocks that requests may take in a step are free.

        Counts what running sequences append and what waiting ones start with. False while groups
        come from swap space, a store or another worker.
        """
        state, sizes = self._state, self._state.blocks.sizes
        queues, limits = state.queues, state.config.limits
        waiting = queues.admission.groups
        if queues.swapped or queues.loading or state.connector.exchanges_groups:
            return False
        if len(waiting) > MAX_WAITING:
            return False
        seqs = [seq for group in waiting for seq in group.unfinished]
        wanted = sum(sizes.most_of_sequence(sizes.num_rows(seq.num_tokens)) for seq in seqs)
        num_seqs = queues.num_sequence_slots + sum(one.num_reserved_sequences for one in waiting)
        num_rows = num_seqs * (1 + sizes.num_rows(1 + limits.max_draft_tokens))
        if not sizes.keeps_all:
            num_rows += sizes.num_rows(limits.max_num_batched_tokens)
        wanted += sizes.num_in_rows(num_rows) + num_seqs * sizes.num_in_rows(0)
        return not num_seqs or state.blocks.gpu.room_for(wanted) is AllocStatus.OK

    def fill(self, plan: StepPlan, now: float) -> None:
        self.next_poll_at = math.inf
        if plan.seqs or self._state.in_flight or not self._is_idle(plan):
            return
        if self._audit is None:
            self._begin(now)
        if self._audit is not None and self._can_go_on(self._audit):
            self._add(self._audit, plan)

    def _is_idle(self, plan: StepPlan) -> bool:
        """Returns whether no request is on the worker, comes to it or waits."""
        state, queues = self._state, self._state.queues
        has_requests = queues.running or queues.swapped or queues.loading or queues.admission.groups
        has_moves = plan.has_incoming or state.connector.exchanges_groups
        return not (has_requests or has_moves or state.blocks.copies.has_swaps)

    def _begin(self, now: float) -> None:
        """Begins the next branch, if there is one and audits have time left."""
        turn, gpu = self._next_turn(now), self._state.blocks.gpu
        if turn is None or self._num_blocks(turn.record) > gpu.num_free:
            return
        if turn is not self._next:
            self._records.take(turn.record)
            self._log.num_begun += 1
        self._next = None
        seq = make_sequence(turn.record, turn.branch, uses_drafts=turn.uses_drafts, now=now)
        self._state.drafts.take(seq.group)
        self._state.blocks.start(seq, [])
        self._audit = RunningAudit(turn, seq, TableHold(gpu, seq, kind=HoldKind.AUDIT))

    def _next_turn(self, now: float) -> AuditTurn | None:
        if self._next is not None:
            return self._next
        record = self._records.find(self, now)
        if record is None:
            return None
        if wait_s := self._allowance.wait_s(now):
            self.next_poll_at = now + wait_s + POLL_SLACK_S
            return None
        uses_drafts = (self._log.num_begun + 1) % WITHOUT_DRAFTS != 0
        return AuditTurn(record, 0, uses_drafts, AuditUse())

    def _can_go_on(self, audit: RunningAudit) -> bool:
        """Drops an audit whose adapter or grammar the worker no longer has, also while it pauses,
        as an adapter that is loaded again is in another slot. Returns False then."""
        group = audit.seq.group
        if not self._state.queues.admission.has_adapter(group):
            self._drop(DropReason.ADAPTER)
        elif not self._state.grammars.has(group):
            self._drop(DropReason.GRAMMAR)
        return self._audit is audit

    def _add(self, audit: RunningAudit, plan: StepPlan) -> None:
        """Adds a chunk of the prompt, or a token and the drafts behind it."""
        blocks, worker_state, seq = self._state.blocks, self._state.worker_state, audit.seq
        most = min(self._pace.most_rows, plan.token_budget)
        num_new_tokens = min(seq.num_remaining_tokens, most)
        num_new_tokens = blocks.most_new_tokens(seq, num_new_tokens)
        num_drafts = self._num_drafts(audit, most)
        num_rows = num_new_tokens + num_drafts
        if not num_new_tokens or blocks.can_append_slots(seq, num_rows) is not AllocStatus.OK:
            self._drop(DropReason.BLOCKS)
            return
        worker_state.append_slots(plan, seq, num_rows)
        worker_state.add(plan, seq, num_new_tokens, num_drafts=num_drafts)
        plan.is_audit = True

    def _num_drafts(self, audit: RunningAudit, most_rows: int) -> int:
        """Returns the most drafts of the next step. A run ends at the end of the output, and at
        the end of a state's row."""
        seq, blocks = audit.seq, self._state.blocks
        if seq.num_remaining_tokens > 1 or not seq.is_on_worker:
            return 0
        num_left = len(audit.turn.branch.token_ids) - len(seq.output_token_ids)
        num_drafts = min(seq.group.max_drafts, most_rows - 1, num_left - 1)
        if blocks.states.num_blocks:
            num_drafts = min(num_drafts, -(seq.num_planned_tokens + 1) % blocks.block_size)
        return max(0, num_drafts)

    # Answers

    def record(self, plan: StepPlan, result: StepResult) -> None:
        keep_logits(plan, result, worker=self.name)

    def compare(self, plan: StepPlan, result: StepResult, now: float, *, seconds: float) -> None:
        num_rows = plan.num_new_tokens[0] + plan.num_drafts.get(0, 0)
        self._allowance.spend(seconds)
        self._log.seconds += seconds
        self._pace.observe(num_rows, seconds, now)
        audit, draws = self._audit, take_draws(plan, result)
        if audit is None or audit.seq is not plan.seqs[0]:
            self._release_dropped()
        elif draws is None:
            self._drop(DropReason.FAILED)
        else:
            audit.turn.use.seconds += seconds
            self._compare(audit, draws, now)
            if self._audit is audit and self._pace.is_too_slow(now):
                self._drop(DropReason.SLOW)

    def _compare(self, audit: RunningAudit, draws: list[TokenBits], now: float) -> None:
        """Compares a run of draws with the answer; the first difference ends the audit."""
        use = audit.turn.use
        num_compared = use.num_tokens
        finding = audit.compare(draws, now, worker=self.name)
        self._log.num_tokens += use.num_tokens - num_compared
        self._state.blocks.cache_blocks(audit.seq)  # frees what is behind windows
        if finding is not None or (audit.is_complete and audit.turn.is_last):
            self._end(audit, now, finding)
        elif audit.is_complete:
            self._audit = None
            self._release(audit)
            self._next = audit.turn.next

    # Ending

    def drop(self) -> None:
        if self._next is not None:
            self._next = None
            self._log.drop(DropReason.WORKER)
        elif self._audit is not None:
            self._drop(DropReason.WORKER)

    def _drop(self, reason: DropReason) -> None:
        """Ends an audit without a result; its blocks are free once no step in flight has them."""
        audit, self._audit = self._audit, None
        assert audit is not None, "there is no audit to drop"
        self._log.drop(reason)
        self._dropped = audit
        if not audit.seq.num_inflight_tokens:
            self._release_dropped()

    def _release_dropped(self) -> None:
        if (audit := self._dropped) is not None:
            self._dropped = None
            self._release(audit)

    def _end(self, audit: RunningAudit, now: float, finding: AuditFinding | None = None) -> None:
        self._audit = None
        self._release(audit)
        use, group = audit.turn.use, audit.turn.record.group
        self._log.end(AuditEnd(group, self.name, use.num_tokens, use.seconds, now, finding))

    def _release(self, audit: RunningAudit) -> None:
        self._state.blocks.free(audit.seq)
        self._state.worker_state.forget(audit.seq)

    def close(self) -> None:
        self.drop()
        self._release_dropped()

    def check(self) -> None:
        """Asserts that one audit at most has blocks, and that requests share none of them."""
        assert self._audit is None or self._dropped is None
        for audit in filter(None, (self._audit, self._dropped)):
            assert not any(map(self._state.blocks.gpu.is_shared, audit.hold.blocks))
            assert not audit.seq.num_cached_blocks

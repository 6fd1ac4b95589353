"""An audit under way: the branch that a worker computes again, and its comparison with the answer.

Also keeps the logits of requests that may be audited, which are read of the same results of steps.
"""

import math
from collections.abc import Sequence as Values
from dataclasses import dataclass
from typing import NamedTuple

from signalbox_contract.step_result import StepResult
from signalbox_scheduler.audits.finding import AuditFinding, TokenBits
from signalbox_scheduler.audits.record import AuditedBranch, AuditRecord, float_bits
from signalbox_scheduler.kv.table_hold import TableHold
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import Sequence
from signalbox_scheduler.results.drawn_tokens import DrawnTokens


@dataclass(slots=True)
class AuditUse:
    """Tokens that an audit has compared so far, and the time of its steps, over all branches."""

    num_tokens: int = 0
    seconds: float = 0.0


class AuditTurn(NamedTuple):
    """One branch of an answer. An audit computes them one after another."""

    record: AuditRecord
    place: int
    """Index of the branch in the record."""
    uses_drafts: bool
    use: AuditUse

    @property
    def branch(self) -> AuditedBranch:
        return self.record.branches[self.place]

    @property
    def is_last(self) -> bool:
        return self.place + 1 == len(self.record.branches)

    @property
    def next(self) -> "AuditTurn":
        return self._replace(place=self.place + 1)


@dataclass(slots=True)
class RunningAudit:
    """A branch that is being computed again."""

    turn: AuditTurn
    seq: Sequence
    hold: TableHold
    """Owns the blocks of the sequence."""

    @property
    def is_complete(self) -> bool:
        """True if all tokens of the branch are compared."""
        return len(self.seq.output_token_ids) >= len(self.turn.branch.token_ids)

    def compare(self, draws: list[TokenBits], now: float, *, worker: str) -> AuditFinding | None:
        """Appends a run of draws, and compares it with the answer; returns the first difference.

        Args: worker: address of the worker that computed them.
        """
        branch, start = self.turn.branch, len(self.seq.output_token_ids)
        end = start + len(draws)
        self.seq.append([one.token_id for one in draws])
        known = map(TokenBits, branch.token_ids[start:end], branch.logit_bits[start:end])
        for position, (audited, answered) in enumerate(zip(draws, known, strict=True), start):
            self.turn.use.num_tokens += 1
            if audited != answered:
                return self._finding(position, audited, answered, now, worker)
        return None

    def _finding(
        self, position: int, audited: TokenBits, answered: TokenBits, now: float, worker: str
    ) -> AuditFinding:
        record = self.turn.record
        return AuditFinding(
            request_id=record.group.request_id,
            branch=self.turn.branch.branch,
            position=position,
            answered=answered,
            audited=audited,
            answered_by=record.workers,
            audited_by=worker,
            source=record.origin.source,
            suspect=record.origin.suspect,
            history=record.origin.history,
            at=now,
        )


def take_draws(plan: StepPlan, result: StepResult) -> list[TokenBits] | None:
    """Counts what a step of an audit has computed; returns what it has drawn, or None if that
    failed."""
    (seq,), draws = plan.seqs, plan.num_samples[0] > 0
    drawn = DrawnTokens(plan, result)
    run = drawn.run(0) if draws else range(0)
    seq.apply_result(
        plan.num_new_tokens[0],
        draws=draws,
        num_drafts=plan.num_drafts.get(0, 0),
        num_accepted=max(0, len(run) - 1),
    )
    logits = [] if result.draw_logits is None else result.draw_logits.tolist()
    logits = logits[run.start : run.stop]
    if seq.seq_id in result.failures or len(logits) < len(run) or any(map(math.isnan, logits)):
        return None
    return list(map(TokenBits, drawn.token_ids(run), float_bits(logits)))


def keep_logits(plan: StepPlan, result: StepResult, *, worker: str) -> None:
    """Keeps the logits of requests that may be audited, once their tokens are accepted.

    Args: worker: address of the worker that computed the step.
    """
    assert result.draw_logits is not None, "else there is nothing to keep"
    drawn, logits = DrawnTokens(plan, result), result.draw_logits.tolist()
    for i, seq in enumerate(plan.seqs):
        group = seq.group
        if group.logits is None or not plan.num_samples[i] or seq.seq_id in result.failures:
            continue
        if worker not in group.logits.workers:
            group.logits.workers.append(worker)
        if plan.num_samples[i] == 1:
            _keep(seq, logits, drawn.run(i))
            continue
        for branch, row in zip(group.sequences, drawn.rows(i), strict=False):  # of a fork
            _keep(branch, logits, range(row, row + 1))


def _keep(seq: Sequence, logits: Values[float], run: range) -> None:
    """Keeps the logits of the accepted tokens of a run."""
    if seq.group.logits is not None:
        num_known = len(seq.output_token_ids)
        seq.group.logits.add(seq.branch, logits[run.start : run.stop], num_known=num_known)

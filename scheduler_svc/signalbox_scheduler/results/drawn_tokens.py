"""Finds the tokens of a plan's sequences in its result.

A worker reports runs of tokens in the order of its batch. The first sequences of a plan decode, and
nearly always have one run each in this order, which one comparison shows; the runs behind these are
looked up by sequence and branch.
"""

from functools import cached_property

from signalbox_contract.step_result import StepResult
from signalbox_scheduler.planning.plan import StepPlan


class DrawnTokens:
    """Indices into the tokens of a result, by sequence of its plan."""

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        self.plan = plan
        self.result = result
        self.num_leading = _num_leading(plan, result)
        """First sequences of the plan for which token i is the one of sequence i."""

    @cached_property
    def runs(self) -> dict[tuple[int, int], range]:
        """Indices of each run behind the leading tokens, by sequence and branch.

        The result must name no sequence that is not in the plan.
        """
        if len(self.result.seq_ids) == self.num_leading:
            return {}
        branches = {seq.seq_id: seq.branch for seq in self.plan.seqs}
        return self.result.runs(branches, start=self.num_leading)

    def rows(self, i: int) -> list[int]:
        """Returns the index of the first token of each branch that sequence i of the plan draws.

        Branches without a token are left out.
        """
        if i < self.num_leading:
            return [i]
        seq, num_samples = self.plan.seqs[i], self.plan.num_samples[i]
        keys = ((seq.seq_id, seq.branch + draw) for draw in range(num_samples))
        return [self.runs[key].start for key in keys if key in self.runs]

    def run(self, i: int) -> range:
        """Returns the indices of all tokens that sequence i of the plan, of one branch, has got."""
        if i < self.num_leading:
            return range(i, i + 1)
        seq = self.plan.seqs[i]
        return self.runs.get((seq.seq_id, seq.branch), range(0))

    @cached_property
    def drafts(self) -> dict[int, tuple[int, int]]:
        """Drafts that each sequence has computed, and their `DraftSource`, by sequence id."""
        if (drafts := self.result.drafts) is None:
            return {}
        columns = (drafts.seq_ids, drafts.num_drafts, drafts.sources)
        seq_ids, num_drafts, sources = (column.tolist() for column in columns)
        return dict(zip(seq_ids, zip(num_drafts, sources, strict=True), strict=True))

    def token_ids(self, rows: list[int] | range) -> list[int]:
        token_ids = self.result.token_ids.tolist()
        if isinstance(rows, range):
            return token_ids[rows.start : rows.stop]
        return [token_ids[row] for row in rows]


def _num_leading(plan: StepPlan, result: StepResult) -> int:
    """Returns how many sequences come before the first that does not draw one token, or has
    got several; 0 if the result has no token of one of them, or has them in another order."""
    if result.failures:
        return 0
    num = num_decodes = len(plan.decode_ids)
    if num < len(plan.seqs):
        after = plan.num_samples[num:]
        num += next((i for i, num_samples in enumerate(after) if num_samples != 1), len(after))
    if result.num_tokens is not None:
        lengths = result.num_tokens.tolist()[:num]
        num = next((i for i, length in enumerate(lengths) if length != 1), len(lengths))
    if num == num_decodes == len(result.seq_ids):
        is_same = result.seq_ids == plan.decode_ids
    else:
        is_same = result.seq_ids.tolist()[:num] == plan.seq_ids[:num]
    if is_same and result.branches is not None:
        is_same = result.branches.tolist()[:num] == [seq.branch for seq in plan.seqs[:num]]
    return num if is_same else 0

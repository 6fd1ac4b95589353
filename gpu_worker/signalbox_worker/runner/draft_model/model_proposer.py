"""Drafts from a draft model: the likeliest tokens that it continues a sequence with.

Each step first computes the known tokens that are missing in the draft model's KV, of all sequences
in one batch: one or two behind the newest run, or a part of a prompt. Then sequences without
missing tokens are continued token by token, all in one batch each time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.drafts.proposer import DraftAsk, Drafts, NoProposer
from signalbox_worker.runner.draft_model.catch_up import CatchUpBudget
from signalbox_worker.runner.draft_model.draft_batch import DraftRun, draft_batch
from signalbox_worker.runner.draft_model.draft_cache import DraftCache, KeptSequence
from signalbox_worker.runner.executors.executor import Executor

_NEAR = 16
"""Most missing tokens of a sequence that are computed at once; more are computed in parts."""


@dataclass(slots=True)
class _Asked:
    """A sequence for which a step wants drafts."""

    ask: DraftAsk
    kept: KeptSequence
    most: int
    """Most drafts for which there is room."""
    drafts: list[int] = field(default_factory=list)

    @property
    def num_missing(self) -> int:
        return len(self.ask.token_ids) - self.kept.num_known


class _Run(NamedTuple):
    """Tokens of one sequence that a batch computes, and whether it draws after them."""

    asked: _Asked
    token_ids: list[int]
    draws: bool


class ModelProposer(NoProposer):
    """The drafts of one lease."""

    def __init__(
        self,
        executor: Executor,
        capacity: WorkerCapacity,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """The executor computes in a pool of `capacity.num_gpu_blocks`."""
        self._executor, self._clock = executor, clock
        self._num_groups, self._block_size = len(capacity.groups), capacity.block_size
        self._most_tokens = capacity.max_num_batched_tokens
        self.cache = DraftCache(
            num_rows=capacity.num_gpu_blocks // self._num_groups, block_size=self._block_size
        )
        self._behind: dict[int, _Asked] = {}
        """Sequences with many missing tokens, each with a copy of its known tokens."""
        self._budget = CatchUpBudget(
            tokens_per_s=capacity.prefill_tokens_per_s, most_tokens=self._most_tokens
        )

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        self._budget.begin_step(self._clock())
        self.cache.begin_step()
        all_asked = [self._open(ask) for ask in asks]
        drawn = self._catch_up([asked for asked in all_asked if asked.most])
        while drawn := [asked for asked in drawn if len(asked.drafts) < asked.most]:
            runs = [_Run(asked, asked.drafts[-1:], draws=True) for asked in drawn]
            drawn = self._compute(runs)
            for run in runs:
                run.asked.kept.drafts += run.token_ids
        self._budget.end_step(self._clock())
        return [Drafts(asked.drafts, DraftSource.MODEL) for asked in all_asked]

    def forget(self, seq_id: int) -> None:
        self._behind.pop(seq_id, None)
        self.cache.forget(seq_id)

    def _open(self, ask: DraftAsk) -> _Asked:
        kept = self.cache.get(ask.seq_id)
        kept.settle(ask.token_ids)
        model, num_known = self._executor.model, len(ask.token_ids)
        most = min(ask.most, model.max_model_len - num_known + 1)
        is_foreign = (ask.token_ids[kept.num_known :] >= model.vocab_size).any()
        if most < 1 or is_foreign:  # it has no drafts any more
            self.forget(ask.seq_id)
            return _Asked(ask, KeptSequence(), 0)
        # The last draft is not computed.
        room = self.cache.reserve(ask.seq_id, least=num_known, most=num_known + most - 1)
        return _Asked(ask, kept, max(0, min(most, room - num_known + 1)))

    def _catch_up(self, all_asked: Sequence[_Asked]) -> list[_Asked]:
        """Computes missing tokens; returns sequences without any, which have their first draft."""
        runs = self._missing(all_asked)
        began_ns = self._clock()
        drawn = self._compute(runs)
        for run in runs:
            run.asked.kept.num_known += len(run.token_ids)
        num_tokens = sum(len(run.token_ids) for run in runs)
        self._budget.observe(num_tokens=num_tokens, ns=self._clock() - began_ns)
        for asked in all_asked:
            self._behind.pop(asked.ask.seq_id, None)
            if asked.num_missing > _NEAR:
                ask = asked.ask._replace(token_ids=asked.ask.token_ids.copy())
                self._behind[ask.seq_id] = _Asked(ask, asked.kept, most=0)
        return drawn

    def _missing(self, all_asked: Sequence[_Asked]) -> list[_Run]:
        """Returns the missing tokens that a step computes.

        Sequences with the fewest come first, so that they have drafts soon. Those of earlier steps
        that this step does not ask about come last.
        """
        runs: list[_Run] = []
        left, budget = self._most_tokens, self._budget.tokens
        ids = {asked.ask.seq_id for asked in all_asked}
        paused = [one for seq_id, one in self._behind.items() if seq_id not in ids]
        sequences = sorted(all_asked, key=lambda asked: asked.num_missing) + paused
        for asked in (one for one in sequences if one.kept.rows):
            count = min(asked.num_missing, left)
            if asked.num_missing > _NEAR:
                count = min(count, budget)
                budget -= count
            if count:
                left -= count
                start = asked.kept.num_known
                tokens = asked.ask.token_ids[start : start + count].tolist()
                draws = count == asked.num_missing and asked.most > 0
                runs.append(_Run(asked, tokens, draws))
        return runs

    def _compute(self, runs: Sequence[_Run]) -> list[_Asked]:
        """Computes runs after the computed tokens of their sequences; returns the sequences that
        got another draft."""
        if not runs:
            return []
        of_cache = [DraftRun(run.asked.kept, run.token_ids, run.draws) for run in runs]
        batch = draft_batch(of_cache, num_groups=self._num_groups, block_size=self._block_size)
        output = self._executor.execute(batch)
        drawing = [run.asked for run in runs if run.draws]
        drawn = []
        pairs = zip(drawing, output.token_ids.tolist(), strict=True)
        for row, (asked, token_id) in enumerate(pairs):
            if row not in output.failed:
                asked.drafts.append(token_id)
                drawn.append(asked)
        return drawn

"""Drafts from the MTP layer of the served model.

The layer reads the hidden state of each row that the model computes, with the token behind it. Rows
wait until that is known: of a prompt they are read at once, of an answer when a step asks for
drafts, or in a batch of many. Then the layer reads its own result to draft one token more each
time. What it made of drafts is read again once the model has computed them.

Positions that the model computed elsewhere or in an earlier life of the sequence, such as those of
a prefix that was found, have no hidden states here: the layer attends to those that it has read
alone, whose distances are right.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.batch.arrays import FloatArray, Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.drafts.proposer import NO_DRAFTS, DraftAsk, Drafts, NoProposer
from signalbox_worker.runner.draft_model.draft_batch import DraftRun, draft_batch
from signalbox_worker.runner.draft_model.draft_cache import DraftCache, KeptSequence
from signalbox_worker.runner.mtp.mtp_executor import MtpExecutor
from signalbox_worker.runner.mtp.waiting_rows import PredictedToken, WaitingRows, no_rows

logger = logging.getLogger(__name__)

MOST_WAITING = 16
"""Rows of a sequence that wait for an ask; more are read without one."""


class _Due(NamedTuple):
    """Rows that the layer is to read: the first ones that wait."""

    seq_id: int
    rows: WaitingRows
    next_ids: Int64Array
    """The token behind each of them."""
    most: int = 0
    """Most drafts that are wanted behind them; 0 draws none."""


@dataclass(slots=True)
class _Asked:
    """A sequence for which a step wants drafts."""

    kept: KeptSequence
    most: int
    prediction: PredictedToken
    token_ids: list[int] = field(default_factory=list)


class MtpProposer(NoProposer):
    """The drafts of one lease."""

    def __init__(self, executor: MtpExecutor, capacity: WorkerCapacity) -> None:
        """The executor computes in a pool of `capacity.num_gpu_blocks`."""
        self._executor, self._width = executor, executor.hidden_size
        self._block_size, self._most_rows = capacity.block_size, capacity.max_num_batched_tokens
        self.cache = DraftCache(num_rows=capacity.num_gpu_blocks, block_size=self._block_size)
        self._waiting: dict[int, WaitingRows] = {}
        self._has_failed = False

    def take(self, batch: Batch, states: FloatArray) -> None:
        """Takes the hidden states of a batch that the model has computed.

        Args:
            states: [num_tokens, hidden_size], not normed; not to be kept.

        What fails here harms no request: this lease computes no more drafts.
        """
        if self._has_failed or batch.seq_ids is None:
            return
        try:
            due = [*self._taken(batch, batch.seq_ids, states)]
            self._read([one for one in due if self._has_room(one)])
        except Exception:
            logger.exception("the MTP layer has failed; this lease computes no more drafts of it")
            self._has_failed = True
            self._waiting.clear()

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        self.cache.begin_step()
        found = (self._due(ask) for ask in asks)
        due = [one for one in found if one is not None and self._has_room(one)]
        self._read([one for one in due if len(one.next_ids)])
        asked = dict[int, _Asked]()
        for one in due:
            if (behind := one.rows.prediction) is not None:
                kept = self.cache.get(one.seq_id)
                asked[one.seq_id] = _Asked(kept, one.most, behind, [behind.token_id])
        self._continue([*asked.values()])
        return [
            Drafts(asked[ask.seq_id].token_ids, DraftSource.MTP)
            if ask.seq_id in asked
            else NO_DRAFTS
            for ask in asks
        ]

    def forget(self, seq_id: int) -> None:
        self._waiting.pop(seq_id, None)
        self.cache.forget(seq_id)

    def _taken(self, batch: Batch, seq_ids: Int64Array, states: FloatArray) -> Iterator[_Due]:
        """Keeps rows; yields those of sequences with many of which the next token is known."""
        starts, token_ids = batch.query_start, batch.token_ids
        draws = np.append(batch.rows.token_index, len(token_ids))
        # Behind a sequence's first draw are drafts, which may be refused.
        ends = np.minimum(draws[np.searchsorted(draws, starts[:-1])], starts[1:] - 1)
        for i, seq_id in enumerate(seq_ids.tolist()):
            start, stop = int(starts[i]), int(starts[i + 1])
            first = int(batch.positions[start])
            rows = self._waiting.setdefault(seq_id, no_rows(first, self._width))
            rows.add(first, token_ids[start:stop], states[start:stop])
            count = first - rows.first + int(ends[i]) - start
            if count > MOST_WAITING:
                yield _Due(seq_id, rows, rows.token_ids[1 : count + 1])

    def _due(self, ask: DraftAsk) -> _Due | None:
        """Returns the rows before the draft that is wanted; None if some are missing."""
        rows, num_known = self._waiting.get(ask.seq_id), len(ask.token_ids)
        if rows is None:
            return None
        count = num_known - 1 - rows.first
        most = min(ask.most, self._executor.model.max_model_len - num_known + 1)
        if not 0 <= count <= len(rows) or most < 1:
            return None
        rows.drop_from(count)
        return _Due(ask.seq_id, rows, ask.token_ids[rows.first + 1 :].astype(np.int64), most)

    def _read(self, due: Sequence[_Due]) -> None:
        """Reads rows that wait, and predicts behind those that are asked about."""
        for part in self._batches(due):
            runs = [
                DraftRun(self.cache.get(one.seq_id), one.next_ids.tolist(), one.most > 0)
                for one in part
            ]
            states = np.concatenate([one.rows.read(len(one.next_ids)) for one in part])
            found = self._predict(runs, self._executor.norms.of_model(states))
            for run, one in zip(runs, part, strict=True):
                run.kept.num_known += len(run.token_ids)
                one.rows.prediction = next(found) if run.draws else None

    def _has_room(self, due: _Due) -> bool:
        """Reserves the KV of rows and drafts. Without room for the rows they are dropped: the
        layer never attends to them."""
        kept, rows, count = self.cache.get(due.seq_id), due.rows, len(due.next_ids)
        rows.num_read = kept.num_known = min(kept.num_known, rows.num_read)
        least = rows.num_read + count
        if self.cache.reserve(due.seq_id, least=least, most=least + max(0, due.most - 1)):
            return True
        rows.read(count)
        rows.num_read = 0
        return False

    def _batches(self, due: Sequence[_Due]) -> Iterator[list[_Due]]:
        """Divides rows into batches; those of a sequence may be in several."""
        part, left = list[_Due](), self._most_rows
        for one in due:
            while len(one.next_ids) > left:
                if left:
                    part.append(one._replace(next_ids=one.next_ids[:left], most=0))
                    one = one._replace(next_ids=one.next_ids[left:])
                yield part
                part, left = [], self._most_rows
            part.append(one)
            left -= len(one.next_ids)
        if part:
            yield part

    def _continue(self, asked: Sequence[_Asked]) -> None:
        """Drafts further tokens, of all sequences in one batch each time."""
        while drawing := [one for one in asked if self._may_continue(one)]:
            runs = [DraftRun(one.kept, one.token_ids[-1:], draws=True) for one in drawing]
            found = self._predict(runs, np.stack([one.prediction.state for one in drawing]))
            for one, prediction in zip(drawing, found, strict=True):
                one.kept.drafts.append(one.token_ids[-1])
                if prediction is None:
                    one.most = len(one.token_ids)
                else:
                    one.prediction = prediction
                    one.token_ids.append(prediction.token_id)
        for one in asked:
            one.kept.drafts = []

    def _may_continue(self, asked: _Asked) -> bool:
        has_room = asked.kept.num_computed < len(asked.kept.rows) * self._block_size
        return has_room and len(asked.token_ids) < asked.most

    def _predict(
        self, runs: Sequence[DraftRun], states: FloatArray
    ) -> Iterator[PredictedToken | None]:
        """Computes runs; returns what is predicted behind each that draws, None if that fails."""
        batch = draft_batch(runs, num_groups=1, block_size=self._block_size)
        output, results = self._executor.predict(batch, states)
        pairs = zip(output.token_ids.tolist(), results, strict=True)
        return iter(
            [
                None if row in output.failed else PredictedToken(token_id, state)
                for row, (token_id, state) in enumerate(pairs)
            ]
        )

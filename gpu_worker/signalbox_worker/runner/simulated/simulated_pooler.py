"""Makes vectors of what the simulated worker reads through the block tables.

A vector that reads all tokens is a sum over them, kept between the chunks of a prompt as a mean is:
a token that is counted twice, or not at all, changes it as a wrong block does.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.pooling import PoolingModel
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.pooling_rows import PoolingRows
from signalbox_worker.runner.simulated.hashing import MASK, POSITION, SALT, UInt64Array, mix

_EMBEDDING = PoolingModel(
    task="embed", num_outputs=32, activation="normalize", dimensions=(8, 16, 32)
)
SIMULATED_POOLING: Mapping[str, PoolingModel] = {
    "last": _EMBEDDING,
    "mean": replace(_EMBEDDING, reads_all_tokens=True),
    "bidirectional": replace(
        _EMBEDDING, reads_all_tokens=True, is_bidirectional=True, num_token_outputs=8
    ),
    "token_embed": PoolingModel(
        task="token_embed",
        num_outputs=8,
        num_token_outputs=8,
        activation="normalize",
        reads_all_tokens=True,
        is_bidirectional=True,
    ),
    "rerank": PoolingModel(
        task="classify",
        num_outputs=1,
        activation="sigmoid",
        reads_all_tokens=True,
        is_bidirectional=True,
    ),
}
"""Pooling of a simulated worker, by value of `--simulated-pooling`."""

Attend = Callable[[Batch, Int64Array], UInt64Array]
"""Returns [num_tokens], the sums over the contexts of some tokens of a batch."""


class _Chunk(NamedTuple):
    """Totals of a prompt before and after a chunk, which may be computed again if a step fails."""

    start: int
    before: int
    end: int
    after: int

    def total_at(self, position: int) -> int:
        assert position in (self.start, self.end), "a chunk is missing, or computed twice"
        return self.before if position == self.start else self.after


class SimulatedPooler:
    """Pools the sequences of a simulated worker."""

    def __init__(self, model: PoolingModel) -> None:
        self._model = model
        self._chunks: dict[int, _Chunk] = {}  # the last of each slot

    def pool(self, batch: Batch, rows: PoolingRows, attend: Attend) -> BatchOutput:
        """Returns the vectors of the sequences that end."""
        totals = self._totals_of(batch, rows, attend)
        pooled = {
            i: self._token_vectors(batch, i, attend)
            if rows.is_per_token[i]
            else made_up_vector(totals[i], self._model.num_outputs)
            for i in np.flatnonzero(rows.is_last).tolist()
        }
        return BatchOutput(token_ids=np.empty(0, dtype=np.int32), pooled=pooled)

    def _token_vectors(self, batch: Batch, i: int, attend: Attend) -> NDArray[np.float32]:
        """Returns vectors of the context and of each position of a prompt, computed whole."""
        start, stop = batch.query_start[i : i + 2].tolist()
        context = int(attend(batch, np.array([stop - 1]))[0])
        size = self._model.num_token_outputs
        totals = [context + position & MASK for position in batch.positions[start:stop].tolist()]
        return np.concatenate([made_up_vector(total, size) for total in totals])

    def _totals_of(self, batch: Batch, rows: PoolingRows, attend: Attend) -> list[int]:
        """Returns the total of each sequence up to the end of the batch."""
        last = batch.query_start[1:] - 1
        if not self._model.reads_all_tokens:
            sums: list[int] = attend(batch, last).tolist()
            return sums
        lengths = np.diff(batch.query_start)
        if self._model.is_bidirectional:
            sums_of_tokens = np.repeat(attend(batch, last), lengths)
        else:
            sums_of_tokens = attend(batch, np.arange(len(batch.token_ids)))
        values = mix(sums_of_tokens + batch.positions.astype(np.uint64) * np.uint64(POSITION))
        values[batch.positions < np.repeat(rows.num_skipped, lengths)] = 0
        added = np.add.reduceat(values, batch.query_start[:-1], dtype=np.uint64).tolist()
        starts = batch.positions[batch.query_start[:-1]].tolist()
        totals = []
        for slot, start, length, sum_ in zip(
            rows.slots.tolist(), starts, lengths.tolist(), added, strict=True
        ):
            before = self._chunks[slot].total_at(start) if start else 0
            self._chunks[slot] = chunk = _Chunk(start, before, start + length, before + sum_ & MASK)
            totals.append(chunk.after)
        return totals


def made_up_vector(total: int, num_outputs: int) -> NDArray[np.float32]:
    """Returns [num_outputs] numbers in [-1, 1), which float32 holds exactly."""
    keys = np.arange(1, num_outputs + 1, dtype=np.uint64) * np.uint64(SALT)
    mixed = mix(np.uint64(total) + keys) >> np.uint64(40)
    return (mixed.astype(np.float32) / np.float32(1 << 23)) - np.float32(1)

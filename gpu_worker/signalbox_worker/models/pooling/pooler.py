"""Makes the vectors of a batch's sequences out of hidden states.

Owns what the chunks of the sequence in each slot gave so far, begun anew by a chunk at position 0.
Also kept is what they gave before the last one: a batch that fails is computed again.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.pooling_rows import PoolingRows
from signalbox_worker.models.pooling.hidden_states import TokenStates
from signalbox_worker.models.pooling.token_pooling import (
    PartialPool,
    PoolingMode,
    Run,
    add_runs,
    concatenated,
)
from signalbox_worker.models.pooling.vector_modules import VectorModule

NOT_FINITE = "its vector is not finite"
TOO_MANY_VECTORS = (
    "a step has more vectors of tokens than a message holds; lower max_num_batched_tokens"
)
CHUNK_LOST = "what its earlier tokens gave is lost; send the request again"
_MAX_BATCH_BYTES = 48 << 20
"""Most bytes of vectors of tokens in a batch: a message between services has 64 MiB."""


class _Kept(NamedTuple):
    """Partial pools of a sequence, before its last chunk and with it."""

    before: PartialPool
    after: PartialPool

    def up_to(self, position: int) -> PartialPool | None:
        """Returns what the tokens before a position gave; None if that is not known."""
        known = (one for one in self if one.num_tokens == position)
        return next(known, None)


class Pooler:
    """The modes of a model, and the modules that follow."""

    def __init__(
        self,
        modes: Sequence[PoolingMode],
        modules: Sequence[VectorModule],
        token_modules: Sequence[VectorModule] = (),
    ) -> None:
        """Makes a pooler.

        Args:
            modes: those whose vectors are concatenated, in this order.
            token_modules: those that a token's own vector passes through.
        """
        self._modes, self._modules = tuple(modes), tuple(modules)
        self._token_modules = tuple(token_modules)
        self._kept: dict[int, _Kept] = {}

    def pool(self, batch: Batch, states: TokenStates) -> BatchOutput:
        """Adds the tokens of a batch; returns the vectors of the sequences that end with it."""
        rows = batch.pooling
        assert rows is not None, "a batch of a worker that pools"
        slots, runs = rows.slots.tolist(), _runs(batch, rows)
        whole = np.flatnonzero(~rows.is_per_token).tolist()
        before = {i: self._up_to(slots[i], runs[i].position) for i in whole}
        known = [i for i in whole if before[i] is not None]
        lost = {*whole} - {*known}
        output = BatchOutput(
            token_ids=np.empty(0, dtype=np.int32), failed_seqs=dict.fromkeys(lost, CHUNK_LOST)
        )
        per_token = np.flatnonzero(rows.is_per_token & rows.is_last).tolist()
        self._add_token_vectors({i: runs[i].tokens for i in per_token}, states, output)
        if not known:
            return output
        partials = [one for one in before.values() if one is not None]
        pools = add_runs(partials, [runs[i] for i in known], states, frozenset(self._modes))
        ended = [(i, pool) for i, pool in zip(known, pools, strict=True) if rows.is_last[i]]
        self._finish(ended, output)
        if not self._reads_last_alone:
            kept = map(_Kept, partials, pools)
            self._kept |= zip([slots[i] for i in known], kept, strict=True)
        return output

    @property
    def _reads_last_alone(self) -> bool:
        return self._modes == ("lasttoken",)

    def _up_to(self, slot: int, position: int) -> PartialPool | None:
        if not position or self._reads_last_alone:
            return PartialPool(num_tokens=position)
        kept = self._kept.get(slot)
        return None if kept is None else kept.up_to(position)

    def _finish(self, ended: Sequence[tuple[int, PartialPool]], output: BatchOutput) -> None:
        if not ended:
            return
        vectors = self.apply_modules(concatenated([pool for _, pool in ended], self._modes))
        for (i, _), vector in zip(ended, vectors, strict=True):
            if np.isfinite(vector).all():
                output.pooled[i] = vector
            else:
                output.failed_seqs[i] = NOT_FINITE

    def _add_token_vectors(
        self, tokens: Mapping[int, slice], states: TokenStates, output: BatchOutput
    ) -> None:
        """Adds the vectors of each token of some sequences, one after the other."""
        num_bytes = 0
        for i, run in tokens.items():
            rows = states.rows(np.arange(run.start, run.stop))
            vectors = _applied(self._token_modules, rows).reshape(-1)
            num_bytes += vectors.nbytes
            if num_bytes > _MAX_BATCH_BYTES:
                output.failed_seqs[i] = TOO_MANY_VECTORS
            elif np.isfinite(vectors).all():
                output.pooled[i] = vectors
            else:
                output.failed_seqs[i] = NOT_FINITE

    def apply_modules(self, vectors: FloatArray) -> FloatArray:
        """Returns what the modules make of pooled vectors, [num_seqs, num_outputs]."""
        return _applied(self._modules, vectors)


def _applied(modules: Sequence[VectorModule], vectors: FloatArray) -> FloatArray:
    for module in modules:
        vectors = module(vectors)
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _runs(batch: Batch, rows: PoolingRows) -> list[Run]:
    starts, stops = batch.query_start[:-1], batch.query_start[1:]
    positions = batch.positions[starts].tolist()
    slices = map(slice, starts.tolist(), stops.tolist())
    return list(map(Run, slices, positions, rows.num_skipped.tolist()))

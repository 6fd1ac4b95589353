"""Drives a runner that pools as a scheduler would: prompts in, vectors out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from signalbox_contract.pooling import PoolingParams
from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.pooling_rows import PoolingRows
from tests.gpu_worker.generation import make_rows

BLOCK_SIZE = 16
WHOLE = 1 << 20
ONE_SEGMENT = PoolingParams()


@dataclass(slots=True, kw_only=True)
class Prompt:
    """A prompt with the number of its tokens that are computed."""

    token_ids: Sequence[int]
    slot: int
    first_block: int
    params: PoolingParams = ONE_SEGMENT
    num_computed: int = 0

    @property
    def num_left(self) -> int:
        return len(self.token_ids) - self.num_computed


def make_prompts(
    prompts: Sequence[Sequence[int]], params: Sequence[PoolingParams] | None = None
) -> list[Prompt]:
    """Gives each prompt a slot and blocks."""
    made, block = [], 0
    for slot, token_ids in enumerate(prompts):
        own = ONE_SEGMENT if params is None else params[slot]
        made.append(Prompt(token_ids=token_ids, slot=slot, first_block=block, params=own))
        block += -(-len(token_ids) // BLOCK_SIZE)
    return made


def make_batch(prompts: Sequence[Prompt], chunk: int = WHOLE) -> Batch:
    """Computes the next tokens of each prompt, at most `chunk` of each."""
    counts = np.array([min(chunk, one.num_left) for one in prompts])
    starts = np.array([one.num_computed for one in prompts])
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, counts, strict=True)])
    blocks = np.repeat([one.first_block for one in prompts], counts)
    ends = starts + counts
    num_blocks = -(-ends // BLOCK_SIZE)
    tables = np.zeros((len(prompts), num_blocks.max()), dtype=np.int32)
    for row, (one, count) in enumerate(zip(prompts, num_blocks.tolist(), strict=True)):
        tables[row, :count] = np.arange(one.first_block, one.first_block + count)
    return Batch(
        token_ids=np.concatenate(
            [one.token_ids[s:e] for one, s, e in zip(prompts, starts, ends, strict=True)]
        ).astype(np.int64),
        positions=positions,
        slot_mapping=blocks * BLOCK_SIZE + positions,
        query_start=query_start,
        context_lens=ends,
        block_tables=tables,
        rows=make_rows([], token_index=[]),
        token_types=_token_types(prompts, positions, counts),
        pooling=PoolingRows(
            slots=np.array([one.slot for one in prompts]),
            is_last=np.array([len(one.token_ids) for one in prompts]) == ends,
            num_skipped=np.array(
                [one.params.num_skipped_tokens for one in prompts], dtype=np.int32
            ),
            is_per_token=np.array([one.params.is_per_token for one in prompts]),
        ),
    )


def _token_types(prompts: Sequence[Prompt], positions: Any, counts: Any) -> Any:
    firsts = [one.params.num_first_segment_tokens or len(one.token_ids) for one in prompts]
    types = (positions >= np.repeat(firsts, counts)).astype(np.int32)
    return types if types.any() else None


def pool(
    runner: Any,
    prompts: Sequence[Sequence[int]],
    *,
    chunk: int = WHOLE,
    params: Sequence[PoolingParams] | None = None,
) -> FloatArray:
    """Returns the vectors of prompts that are computed together, [num_prompts, num_outputs]."""
    left, vectors = make_prompts(prompts, params), dict[int, FloatArray]()
    while left:
        batch = make_batch(left, chunk)
        output: BatchOutput = runner.execute(batch)
        assert not output.failed_seqs
        counts = np.diff(batch.query_start).tolist()
        for i, (one, count) in enumerate(zip(left, counts, strict=True)):
            one.num_computed += count
            if not one.num_left:
                vectors[one.slot] = output.pooled.pop(i)
        assert not output.pooled
        left = [one for one in left if one.num_left]
    return np.stack([vectors[slot] for slot in range(len(prompts))])

"""The digest of a fixed computation: workers of one model with equal digests compute equal bits.

A few tokens pass through the program and the sampler. Their K and V lie in two rows of blocks,
after K and V of zeros. If the instruction set, the compiler, a type or the number of ranks changes
the last bit of a sum, some logit changes, too.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from signalbox_contract.cache_groups import NO_BLOCK, CacheGroup, state_group
from signalbox_contract.model import Numerics
from signalbox_kernels.filters import EXAMPLES
from signalbox_kernels.program import ProgramShape
from signalbox_kernels.structs import StateArrays
from signalbox_worker.batch.arrays import FloatArray, Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.sampling_rows import NO_LOGPROBS, SampleRows, neutral_filters

_NUM_TOKENS = 9
"""Few tokens, because each passes through the whole model."""
_TOKENS_BEFORE_BOUNDARY = 4
_NUM_LOGPROBS = 5
_FACTOR = 7919
"""A prime, whose multiples look random modulo other numbers."""


class FixedStep(NamedTuple):
    """The computation, and the blocks of the pool that it is computed in."""

    batch: Batch
    num_blocks: int


def fixed_step(
    shape: ProgramShape,
    groups: Sequence[CacheGroup],
    *,
    max_num_tokens: int,
    max_model_len: int,
    takes_hidden: bool,
) -> FixedStep:
    """Returns the computation, which is the same in each process.

    Args:
        max_num_tokens: most tokens of a step.
        takes_hidden: True of a pipeline stage behind the first.
    """
    size, num_groups = shape.block_size, len(groups)
    num_tokens = min(_NUM_TOKENS, max_num_tokens, max_model_len)
    first = min(max(0, size - _TOKENS_BEFORE_BOUNDARY), max_model_len - num_tokens)
    positions = first + np.arange(num_tokens)
    end = first + num_tokens
    num_entries = -(-end // size) * num_groups
    blocks = (positions // size * num_groups)[:, None] + np.arange(num_groups)
    slots = blocks * size + (positions % size)[:, None]
    batch = Batch(
        token_ids=positions * _FACTOR % shape.vocab_size,
        positions=positions,
        slot_mapping=slots[:, 0] if num_groups == 1 else slots,
        query_start=np.array([0, num_tokens]),
        context_lens=np.array([end]),
        block_tables=np.arange(num_entries, dtype=np.int32)[None],
        rows=_draws(positions, vocab_size=shape.vocab_size),
    )
    if takes_hidden:
        numbers = np.arange(num_tokens * shape.hidden_size) * _FACTOR % 2003 - 1001
        hidden = (numbers / 1024).astype(np.float32).reshape(num_tokens, -1)
        batch.hidden = hidden.view(np.uint8)
    if (group := state_group(groups)) is None:
        return FixedStep(batch, num_entries)
    batch.states = _new_state(group.state_blocks, num_tokens, first_block=num_entries)
    return FixedStep(batch, num_entries + group.state_blocks)


def _new_state(num_blocks: int, num_tokens: int, *, first_block: int) -> StateArrays:
    """Returns a state that begins with the tokens, and is written to blocks from `first_block`."""
    return StateArrays(
        first_runs=np.array([0, 1], dtype=np.int32),
        run_start=np.array([0, num_tokens]),
        reads=np.full((1, num_blocks), NO_BLOCK, dtype=np.int32),
        writes=first_block + np.arange(num_blocks, dtype=np.int32)[None],
    )


def _draws(positions: Int64Array, *, vocab_size: int) -> SampleRows:
    """Returns a draw after each token; every second one is random, with all filters."""
    num_rows = len(positions)
    is_random = np.arange(num_rows) % 2 == 1
    filters = neutral_filters(num_rows)
    for column, value in zip(filters, EXAMPLES, strict=True):
        column[is_random] = value
    return SampleRows(
        seq_ids=np.zeros(num_rows, dtype=np.int64),
        token_index=np.arange(num_rows),
        branch=np.zeros(num_rows, dtype=np.int64),
        position=positions + 1,
        temperature=np.where(is_random, 0.8, 0.0).astype(np.float32),
        filters=filters,
        seed=positions.astype(np.uint64),
        num_logprobs=np.where(is_random, min(_NUM_LOGPROBS, vocab_size), NO_LOGPROBS),
    )


def digest_of(numerics: Numerics | None, output: BatchOutput, logits: FloatArray) -> str:
    """Returns the SHA-256 of a computation's bits, in hex.

    Args:
        logits: of the rows that the sampler got, [num_rows, vocab_size].
    """
    found = hashlib.sha256(str(numerics).encode())
    found.update(output.token_ids.tobytes())
    found.update(logits.tobytes())
    if output.hidden is not None:
        found.update(output.hidden.tobytes())
    for entry in output.logprobs:
        found.update(np.array([entry.logprob, *entry.top_logprobs]).tobytes())
        found.update(np.array([entry.rank, *entry.top_token_ids]).tobytes())
    return found.hexdigest()

"""Makes the batch that takes the most memory and time, to measure what a device can hold."""

from collections.abc import Sequence

import numpy as np

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup, state_group
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.sampling_rows import NO_LOGPROBS, SampleRows, neutral_filters
from signalbox_worker.batch.state_runs import first_states, with_drafts

_MOST_DRAWS = 256
"""Most draws of a step that has no more sequences; each takes the memory of its logits."""


def most_draws(*, max_num_seqs: int, max_draft_tokens: int) -> int:
    """Returns the most draws of a step: one behind each sequence, and one behind each draft."""
    return max(max_num_seqs, min(max_num_seqs * (1 + max_draft_tokens), _MOST_DRAWS))


def largest_batch(
    *,
    num_tokens: int,
    num_seqs: int,
    max_model_len: int,
    block_size: int,
    groups: Sequence[CacheGroup] = (FULL_GROUP,),
    num_draws: int = 0,
    top_p: float = 1.0,
) -> Batch:
    """The most sequences and tokens in one step, all drawn at random.

    Args: num_draws: those beyond the number of sequences are behind drafts.
    """
    query_lens = _spread(num_tokens=num_tokens, num_seqs=num_seqs, max_len=max_model_len)
    last = query_lens.cumsum() - 1
    others = np.setdiff1d(np.arange(last[-1]), last)
    drawing = np.union1d(last, others[: max(0, num_draws - num_seqs)])
    rows = _random_rows(drawing, top_p=top_p)
    batch = made_up_batch(query_lens, query_lens, block_size, rows, num_groups=len(groups))
    if (group := state_group(groups)) is not None:
        num_drafts = _first(query_lens - 1, num_draws - num_seqs)
        states = first_states(query_lens - num_drafts, state_blocks=group.state_blocks)
        batch.states = with_drafts(states, num_drafts)
    return batch


def made_up_batch(
    query_lens: Int64Array,
    context_lens: Int64Array,
    block_size: int,
    rows: SampleRows,
    *,
    num_groups: int = 1,
) -> Batch:
    """Returns a batch of these lengths; every block is block 0."""
    query_start = np.concatenate([[0], query_lens.cumsum()])
    first = np.repeat(context_lens - query_lens, query_lens)
    positions = first + np.arange(query_start[-1]) - np.repeat(query_start[:-1], query_lens)
    max_blocks = -(-int(context_lens.max()) // block_size) * num_groups
    slots = positions % block_size
    return Batch(
        token_ids=np.zeros(len(positions), dtype=np.int64),
        positions=positions,
        slot_mapping=slots if num_groups == 1 else np.repeat(slots[:, None], num_groups, axis=1),
        query_start=query_start,
        context_lens=context_lens,
        block_tables=np.zeros((len(query_lens), max_blocks), dtype=np.int32),
        rows=rows,
    )


def _spread(*, num_tokens: int, num_seqs: int, max_len: int) -> Int64Array:
    """Returns the longest possible chunks, and one token for each of the other sequences."""
    lens = np.ones(num_seqs, dtype=np.int64)
    spare = min(num_tokens - num_seqs, num_seqs * (max_len - 1))
    for i in range(num_seqs):
        lens[i] += min(spare, max_len - 1)
        spare -= int(lens[i]) - 1
    return lens


def _first(most: Int64Array, count: int) -> Int64Array:
    """Divides `count` among sequences in order, each of which takes at most its entry of `most`."""
    before = np.cumsum(most) - most
    found: Int64Array = np.clip(count - before, 0, most)
    return found


def _random_rows(token_index: Int64Array, *, top_p: float) -> SampleRows:
    num_rows = len(token_index)
    return SampleRows(
        seq_ids=np.arange(num_rows),
        token_index=token_index,
        branch=np.zeros(num_rows, dtype=np.int64),
        position=np.ones(num_rows, dtype=np.int64),
        temperature=np.ones(num_rows, dtype=np.float32),
        filters=neutral_filters(num_rows)._replace(
            top_p=np.full(num_rows, top_p, dtype=np.float32)
        ),
        seed=np.zeros(num_rows, dtype=np.uint64),
        num_logprobs=np.full(num_rows, NO_LOGPROBS),
    )

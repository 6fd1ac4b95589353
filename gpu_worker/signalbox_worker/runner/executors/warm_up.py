"""Small steps that use every kernel, so that none is compiled while requests are served.

Triton compiles a kernel at its first call, for a second or more, or reads it from its cache. What
is compiled does not depend on counts (`tests/kernels/triton/test_keys.py`) but on tiles, which are
larger for many tokens. So few steps suffice: decodes, prompts of growing lengths, short and long
contexts, with each rule of sampling in some row.
"""

from collections.abc import Iterator

import numpy as np

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.largest_batch import made_up_batch
from signalbox_worker.batch.sampling_rows import (
    NO_LOGPROBS,
    AllowedTokens,
    Biases,
    Penalties,
    SampleRows,
    TokenRuns,
    neutral_filters,
)

_LONG = 8192
"""A context that attention divides over several programs."""


def warm_up_batches(
    *, num_tokens: int, block_size: int, max_model_len: int, vocab_size: int
) -> Iterator[Batch]:
    """Yields the steps; every block is block 0.

    Args:
        num_tokens: the most of a step.
    """
    one = np.ones(1, dtype=np.int64)  # what computes few rows may take no more
    yield made_up_batch(one, one, block_size, _rows(one - 1, vocab_size))
    long = min(_LONG, max_model_len)
    prompts = [4**n for n in range(1, 7) if 4**n < min(num_tokens, max_model_len)]
    for index, (prompt, context) in enumerate(
        ((1, 1), (1, long), *zip(prompts, prompts, strict=True), (min(2, long), long))
    ):
        query_lens = np.array([prompt, 1])
        rows = _rows(query_lens.cumsum() - 1, vocab_size)
        if index % 2:
            rows.allowed = None
        yield made_up_batch(query_lens, np.array([context, 1]), block_size, rows)


def _rows(token_index: Int64Array, vocab_size: int) -> SampleRows:
    """Returns a row without any rule, and others with all of them."""
    num_rows = len(token_index)
    has_rules = np.arange(num_rows) > 0
    ones = np.ones(num_rows, dtype=np.float32)
    one_each = TokenRuns(has_rules.cumsum(dtype=np.int32), np.zeros(has_rules.sum(), np.int32))
    return SampleRows(
        seq_ids=np.arange(num_rows),
        token_index=token_index,
        branch=np.zeros(num_rows, dtype=np.int64),
        position=np.ones(num_rows, dtype=np.int64),
        temperature=ones,
        filters=neutral_filters(num_rows)._replace(top_p=0.9 * ones, top_k=np.full(num_rows, 2)),
        seed=np.zeros(num_rows, dtype=np.uint64),
        num_logprobs=np.where(has_rules, 1, NO_LOGPROBS),
        suppressed=one_each,
        biases=Biases(one_each, ones[1:]),
        allowed=AllowedTokens(
            np.where(has_rules, 0, -1).astype(np.int32),
            np.full((1, -(-vocab_size // 32)), 0xFFFFFFFF, dtype=np.uint32),
        ),
        penalties=Penalties(
            presence=0.5 * has_rules.astype(np.float32),
            frequency=0.5 * has_rules.astype(np.float32),
            repetition=ones,
            num_prompt=np.zeros(num_rows, dtype=np.int64),
            owners=np.zeros(num_rows, dtype=np.int64),
            tokens=np.zeros((1, 1), dtype=np.int32),
        ),
    )

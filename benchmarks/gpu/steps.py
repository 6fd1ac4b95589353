"""Batches as a worker makes them, and what a step must read and compute at the least."""

import numpy as np

from benchmarks.gpu.bench import BLOCK_SIZE
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.largest_batch import largest_batch


def make_batch(
    *, num_seqs: int, num_new: int, context: int, num_blocks: int, vocab_size: int
) -> Batch:
    """Sequences that compute `num_new` tokens each and have `context` of them afterwards.

    Greedy, random tokens; blocks are scattered, as they are after some time.
    """
    rng = np.random.default_rng(0)
    width = -(-context // BLOCK_SIZE)
    tables = rng.permutation(num_blocks)[: num_seqs * width].reshape(num_seqs, width)
    new = np.arange(context - num_new, context)
    query_start = np.arange(num_seqs + 1) * num_new
    rows = largest_batch(
        num_tokens=num_seqs, num_seqs=num_seqs, max_model_len=2, block_size=BLOCK_SIZE
    ).rows
    rows.temperature[:] = 0.0
    rows.token_index = query_start[1:] - 1
    return Batch(
        token_ids=rng.integers(0, vocab_size, num_seqs * num_new),
        positions=np.tile(new, num_seqs),
        slot_mapping=(tables[:, new // BLOCK_SIZE] * BLOCK_SIZE + new % BLOCK_SIZE).ravel(),
        query_start=query_start,
        context_lens=np.full(num_seqs, context),
        block_tables=tables.astype(np.int32),
        rows=rows,
    )


def blocks_for(*, num_seqs: int, context: int) -> int:
    return num_seqs * -(-context // BLOCK_SIZE)


def read_weights_bytes(config: dict[str, object]) -> int:
    """Weights of 16 bits that a step reads in full; of a table of embeddings it reads rows."""
    output_layer = _int(config, "hidden_size") * _int(config, "vocab_size")
    return 2 * (_int(config, "num_hidden_layers") * _layer_weights(config) + output_layer)


def kv_bytes(config: dict[str, object]) -> int:
    """K and V of a token, in 16 bits."""
    heads, size = _int(config, "num_key_value_heads"), _int(config, "head_dim")
    return 2 * 2 * _int(config, "num_hidden_layers") * heads * size


def prefill_flops(config: dict[str, object], num_tokens: int) -> float:
    """Multiplications and additions of a prompt from its first token, one row of logits."""
    layers, head_size = _int(config, "num_hidden_layers"), _int(config, "head_dim")
    # Products of Q with K and of the weights with V; half of them are masked.
    attention = 2 * _int(config, "num_attention_heads") * head_size * num_tokens * num_tokens
    logits = 2 * _int(config, "hidden_size") * _int(config, "vocab_size")
    return float(layers * (2 * _layer_weights(config) * num_tokens + attention) + logits)


def _layer_weights(config: dict[str, object]) -> int:
    hidden, head_size = _int(config, "hidden_size"), _int(config, "head_dim")
    heads, kv_heads = _int(config, "num_attention_heads"), _int(config, "num_key_value_heads")
    attention = hidden * head_size * (2 * heads + 2 * kv_heads)
    return attention + 3 * hidden * _int(config, "intermediate_size")


def _int(config: dict[str, object], name: str) -> int:
    value = config[name]
    assert isinstance(value, int)
    return value

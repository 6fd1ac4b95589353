"""Attention over keys and values in blocks, in plain Torch."""

from itertools import pairwise

import torch
from torch import Tensor


def paged_attention(
    query: Tensor,
    kv_cache: Tensor,
    *,
    query_start: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    is_causal: bool = True,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    token_scales: Tensor | None = None,
) -> Tensor:
    """Attention of packed queries over K and V in blocks; prefill chunks and decodes mix.

    Sequence i has queries query_start[i]:query_start[i + 1], which are the last tokens of its
    context: the last query sits at position context_lens[i] - 1. A query at position p sees keys at
    positions <= p, or all of them unless attention is causal; and those less than sliding_window
    away if there is one. Slots past the context are not read.

    Args:
        query: [num_tokens, num_heads, head_size]; num_heads is a multiple of num_kv_heads.
        kv_cache: one layer's view, [num_blocks, 2, block_size, num_kv_heads, head_size].
        query_start: [num_seqs + 1] int64, ascending from 0.
        context_lens: [num_seqs] int64, the chunk included.
        block_tables: [num_seqs, max_blocks] int32; entries past a sequence's context are ignored.
        scale: factor of the scores before softmax.
        is_causal: False if queries see later keys, too.
        sliding_window: how many positions a query sees on a side, itself included.
        soft_cap: scores become soft_cap * tanh(score / soft_cap) before mask and softmax.
        k_scale, v_scale: factors of the cache's K and V.
        token_scales: factors of each token's and head's K and V in int8.

    Returns:
        [num_tokens, num_heads, head_size], the dtype of `query`.
    """
    out = torch.empty_like(query)
    lens = context_lens.tolist()
    for i, (start, end) in enumerate(pairwise(query_start.tolist())):
        keys, values = map(Tensor.float, _context(kv_cache, block_tables[i], lens[i]))
        if token_scales is not None:
            scales = _context(token_scales, block_tables[i], lens[i])
            keys, values = keys * scales[0][..., None], values * scales[1][..., None]
        visible = attention_mask(
            num_queries=end - start,
            num_keys=lens[i],
            is_causal=is_causal,
            sliding_window=sliding_window,
            device=query.device,
        )
        out[start:end] = _attend(
            query[start:end],
            keys * k_scale,
            values * v_scale,
            visible,
            scale=scale,
            soft_cap=soft_cap,
        )
    return out


def attention_mask(
    *,
    num_queries: int,
    num_keys: int,
    is_causal: bool = True,
    sliding_window: int | None,
    device: torch.device,
) -> Tensor:
    """Returns [num_queries, num_keys] bool: the keys that each of the last `num_queries` sees."""
    keys = torch.arange(num_keys, device=device)
    queries = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    visible = (keys <= queries) | (not is_causal)
    if sliding_window is not None:
        visible &= (keys - queries).abs() < sliding_window
    return visible


def _context(kv_cache: Tensor, block_table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Returns K and V of a sequence, each [length, num_kv_heads, head_size]; or their scales."""
    num_blocks = -(-length // kv_cache.shape[2])
    blocks = kv_cache[block_table[:num_blocks].long()]
    keys, values = blocks.transpose(0, 1).flatten(1, 2)[:, :length]
    return keys, values


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    *,
    scale: float,
    soft_cap: float | None,
) -> Tensor:
    group = query.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(group, dim=1)
    values = values.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)

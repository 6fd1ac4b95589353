"""Causal attention over paged K and V, prefill chunks and decodes in one launch.

FlashAttention's online softmax (Dao, 2023) over PagedAttention's blocks (Kwon et al., SOSP 2023). A
program takes one K and V head and a tile of rows: some queries of one sequence, each with all the
heads of its group, so that K and V are read once a group. Which sequence a tile belongs to is found
by bisection, so the launch needs nothing from the device. Where there are too few tiles for the
device, several programs share a tile's keys and a second kernel joins them (Flash-Decoding, Dao et
al., 2023).

Sums are in float32, and scores in units of log 2, because exp2 is what the device has.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton import MAX_HEAD_SIZE
from signalbox_kernels.triton.attention.splits import join_splits, make_partials
from signalbox_kernels.triton.attention.tiles import LEAST_DOT, Tile, choose_tile
from signalbox_kernels.triton.launch import (
    check,
    check_cache,
    check_tensors,
    is_interpreted,
    next_power_of_2,
    product_type,
)

_MIN_KEYS_PER_SPLIT = 256
_MAX_SPLITS = 32
_SPLITS = frozenset(1 << i for i in range(6))


@triton.jit
def _sequence_of(query_start, tile, num_seqs, QUERIES: tl.constexpr):
    """Returns the last sequence whose first tile is not past `tile`."""
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _scores(q, k, scale, soft_cap, HAS_CAP: tl.constexpr):
    """Returns scores, scaled and capped, in units of log 2."""
    scores = tl.dot(q, k, input_precision="ieee") * scale
    if HAS_CAP:  # tanh of the size, whose exponential cannot overflow, with the sign
        falling = tl.exp(tl.abs(scores) * (-2.0 / soft_cap))
        capped = soft_cap * (1.0 - falling) / (1.0 + falling)
        scores = tl.where(scores < 0, -capped, capped)
    return scores * 1.4426950408889634


@triton.jit
def _keys_of(
    first_position,
    context_len,
    window,
    split,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    num_splits,
    IS_SPLIT: tl.constexpr,
):
    """Returns the first key that a tile sees, the end, and this program's share as key tiles."""
    end_key = tl.minimum(first_position + QUERIES, context_len)
    first_key = first_position * 0
    if HAS_WINDOW:
        first_key = tl.maximum(first_position - window + 1, 0)
    begin = first_key // KEYS
    end = tl.cdiv(end_key, KEYS)
    if IS_SPLIT:
        share = tl.cdiv(end - begin, num_splits)
        begin += split * share
        end = tl.minimum(begin + share, end)
    return first_key, end_key, begin, end


@triton.jit
def _slots(
    table, key, is_key, kv_head, block_stride, offset_stride, head_stride, BLOCK_SIZE: tl.constexpr
):
    """Returns the offsets of keys in the cache, in 64 bits because they exceed 2^31."""
    block = tl.load(table + key // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
    return block * block_stride + (key % BLOCK_SIZE) * offset_stride + kv_head * head_stride


@triton.jit
def _add_tile(top, total, acc, scores, v, PRODUCT: tl.constexpr):
    """Adds a tile's scores and values to the online softmax."""
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # inf - inf is NaN
    weights = tl.exp2(scores - shift[:, None])
    correction = tl.exp2(top - shift)
    total = total * correction + tl.sum(weights, axis=1)
    acc = acc * correction[:, None]
    acc += tl.dot(weights.to(PRODUCT), v.to(PRODUCT), input_precision="ieee")
    return new_top, total, acc


@triton.jit(do_not_specialize=["table_stride", "num_seqs", "num_splits"])
def _paged_attention_kernel(
    query,
    kv_cache,
    query_start,
    context_lens,
    block_tables,
    out,
    split_out,
    split_max,
    split_sum,
    query_token_stride,
    query_head_stride,
    block_stride,
    side_stride,
    offset_stride,
    head_stride,
    table_stride,
    num_seqs,
    num_splits,
    num_heads,
    head_size,
    scale,
    v_scale,
    soft_cap,
    window,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    seq = _sequence_of(query_start, tile, num_seqs, QUERIES)
    start = tl.load(query_start + seq)
    num_queries = tl.load(query_start + seq + 1) - start
    first_query = (tile - start // QUERIES - seq) * QUERIES
    if first_query >= num_queries:  # the launcher does not know how many tiles there are
        return

    context_len = tl.load(context_lens + seq)
    row = tl.arange(0, ROWS)
    element = tl.arange(0, PADDED_SIZE)
    in_head = element < head_size
    query_index = first_query + row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = (row // GROUP < QUERIES) & (query_index < num_queries)
    position = context_len - num_queries + query_index
    token = start + query_index
    q_rows = query + token * query_token_stride + head * query_head_stride
    row_mask = is_row[:, None] & in_head[None, :]
    q = tl.load(q_rows[:, None] + element[None, :], mask=row_mask, other=0.0).to(PRODUCT)

    first_key, end_key, begin, end = _keys_of(
        context_len - num_queries + first_query,
        context_len,
        window,
        split,
        QUERIES,
        KEYS,
        HAS_WINDOW,
        num_splits,
        IS_SPLIT,
    )
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED_SIZE], tl.float32)
    table = block_tables + seq * table_stride
    for key_tile in range(begin, end):
        key = key_tile * KEYS + tl.arange(0, KEYS)
        is_key = (key >= first_key) & (key < end_key)  # other slots may hold a NaN
        slot = _slots(
            table, key, is_key, kv_head, block_stride, offset_stride, head_stride, BLOCK_SIZE
        )
        k_mask = in_head[:, None] & is_key[None, :]
        v_mask = is_key[:, None] & in_head[None, :]
        k = tl.load(kv_cache + slot[None, :] + element[:, None], mask=k_mask, other=0.0)
        v_rows = kv_cache + side_stride + slot
        v = tl.load(v_rows[:, None] + element[None, :], mask=v_mask, other=0.0)
        visible = is_key[None, :] & (key[None, :] <= position[:, None])
        if HAS_WINDOW:
            visible &= key[None, :] > position[:, None] - window
        scores = _scores(q, k.to(PRODUCT), scale, soft_cap, HAS_CAP)
        scores = tl.where(visible, scores, float("-inf"))
        top, total, acc = _add_tile(top, total, acc, scores, v, PRODUCT)

    acc *= v_scale
    row_out = token * num_heads + head
    if IS_SPLIT:
        row_out = row_out * num_splits + split
        tl.store(split_max + row_out, top, mask=is_row)
        tl.store(split_sum + row_out, total, mask=is_row)
        target = split_out + row_out[:, None] * PADDED_SIZE + element[None, :]
        tl.store(target, acc, mask=is_row[:, None])
    else:
        acc = acc / tl.where(is_row, total, 1.0)[:, None]
        target = out + row_out[:, None] * head_size + element[None, :]
        tl.store(target, acc.to(out.dtype.element_ty), mask=row_mask)


def paged_attention(
    query: Tensor,
    kv_cache: Tensor,
    *,
    query_start: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    num_splits: int | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """Computes attention; `ops.paged_attention` is the contract.

    Args:
        num_splits: programs that share a tile's keys, a power of two; None chooses by the shapes
            alone, so that the host does not wait for the device.
        tile: sizes of a program's tile; None takes `choose_tile`'s.
    """
    _check(query, kv_cache, query_start, context_lens, block_tables)
    num_tokens, num_heads, head_size = query.shape
    num_seqs, block_size, num_kv_heads = len(context_lens), kv_cache.shape[2], kv_cache.shape[3]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if not num_tokens:
        return out
    group = num_heads // num_kv_heads
    padded_size = max(LEAST_DOT, next_power_of_2(head_size))
    tile = tile or choose_tile(
        num_bytes=query.dtype.itemsize,
        padded_size=padded_size,
        is_prefill=num_tokens >= 4 * num_seqs,
        capability=_capability(query.device),
    )
    rows = max(tile.rows, next_power_of_2(group))
    queries = rows // group
    num_tiles = num_tokens // queries + num_seqs
    if num_splits is None:
        longest = block_tables.shape[1] * block_size
        num_splits = _choose_splits(num_tiles * num_kv_heads, longest, query.device)
    check(
        num_splits in _SPLITS,
        "paged_attention: num_splits is {}; use a power of two up to {}",
        num_splits,
        _MAX_SPLITS,
    )
    partials = make_partials(out, num_splits=num_splits, padded_size=padded_size)
    _paged_attention_kernel[(num_tiles, num_kv_heads, num_splits)](
        query,
        kv_cache,
        query_start,
        context_lens,
        block_tables,
        out,
        *partials,
        *query.stride()[:2],
        *kv_cache.stride()[:4],
        block_tables.stride(0),
        num_seqs,
        num_splits,
        num_heads,
        head_size,
        scale * k_scale,
        v_scale,
        1.0 if soft_cap is None else soft_cap,
        0 if sliding_window is None else sliding_window,
        GROUP=group,
        ROWS=rows,
        QUERIES=queries,
        KEYS=tile.keys,
        BLOCK_SIZE=block_size,
        PADDED_SIZE=padded_size,
        HAS_WINDOW=sliding_window is not None,
        HAS_CAP=soft_cap is not None,
        IS_SPLIT=num_splits > 1,
        PRODUCT=product_type(query.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if num_splits > 1:
        join_splits(out, partials)
    return out


def _check(
    query: Tensor, kv_cache: Tensor, query_start: Tensor, context_lens: Tensor, tables: Tensor
) -> None:
    op = "paged_attention"
    check_tensors(op, query, kv_cache, query_start, context_lens, tables)
    check_cache(op, kv_cache, query)
    num_heads, head_size = query.shape[1:]
    check(
        kv_cache.dim() == 5 and kv_cache.shape[1] == 2 and kv_cache.shape[4] == head_size,
        "{}: the cache is {}, queries are {}",
        op,
        kv_cache.shape,
        query.shape,
    )
    check(head_size <= MAX_HEAD_SIZE, "{}: heads have {} elements; at most 256", op, head_size)
    check(
        num_heads % kv_cache.shape[3] == 0 and num_heads // kv_cache.shape[3] <= 128,
        "{}: {} heads on {}; groups must be whole, of at most 128",
        op,
        num_heads,
        kv_cache.shape[3],
    )
    check(
        query_start.shape == (len(context_lens) + 1,) and len(tables) == len(context_lens),
        "{}: starts are {}, contexts {}, tables {}",
        op,
        query_start.shape,
        context_lens.shape,
        tables.shape,
    )
    check(
        query_start.is_contiguous() and context_lens.is_contiguous() and tables.stride(-1) == 1,
        f"{op}: starts, lengths and rows of tables must be contiguous",
    )


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return (0, 0) if is_interpreted() else torch.cuda.get_device_capability(device)


def _choose_splits(num_programs: int, longest_context: int, device: torch.device) -> int:
    """Returns enough splits to keep the device busy; 1 if a program would get too few keys."""
    if is_interpreted():
        return 1
    num_processors = torch.cuda.get_device_properties(device).multi_processor_count
    splits = 1
    while (
        splits < _MAX_SPLITS
        and splits * num_programs < num_processors
        and longest_context > 2 * splits * _MIN_KEYS_PER_SPLIT
    ):
        splits *= 2
    return splits

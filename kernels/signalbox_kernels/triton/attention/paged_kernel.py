"""Attention over paged K and V, causal or both ways, prefill chunks and decodes in one launch.

FlashAttention's online softmax (Dao, 2023) over PagedAttention's blocks (Kwon et al., SOSP 2023). A
program takes one K and V head and an item of the step's work (`work.py`): a tile of rows, some
queries of one sequence, each with all the heads of its group, so that K and V are read once a
group; or a share of the keys of such a tile (`shares.py`).

Sums are in float32, and scores in units of log 2, because exp2 is what the device has.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton.attention.shares import (
    is_last,
    join_shares,
    joined,
    store_rows,
    store_share,
)
from signalbox_kernels.triton.attention.tiles import LEAST_DOT
from signalbox_kernels.triton.attention.work import FIELDS, Work
from signalbox_kernels.triton.launch import (
    await_kernels_before,
    check,
    check_cache,
    check_tensors,
    launch_options,
    next_power_of_2,
    product_type,
    scale_strides,
)

OP = "paged_attention"


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
def _key_rows(cache, table, key, is_key, block_stride, offset_stride, BLOCK_SIZE: tl.constexpr):
    """Returns where keys lie in the cache: in 64 bits up to the block, in 32 bits inside it."""
    block = tl.load(table + key // BLOCK_SIZE, mask=is_key, other=0)
    return cache + block.to(tl.int64) * block_stride + (key % BLOCK_SIZE) * offset_stride


@triton.jit
def _add_tile(
    top, total, acc, scores, v, v_scales, PRODUCT: tl.constexpr, HAS_SCALES: tl.constexpr
):
    """Adds a tile's scores and values to the online softmax."""
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # inf - inf is NaN
    weights = tl.exp2(scores - shift[:, None])
    correction = tl.exp2(top - shift)
    total = total * correction + tl.sum(weights, axis=1)
    acc = acc * correction[:, None]
    if HAS_SCALES:
        weights *= v_scales[None, :]
    acc += tl.dot(weights.to(PRODUCT), v.to(PRODUCT), input_precision="ieee")
    return new_top, total, acc


@triton.jit(do_not_specialize=["table_stride"])
def _paged_attention_kernel(
    query,
    kv_cache,
    token_scales,
    block_tables,
    out,
    items,
    context_lens,
    arrived,
    share_out,
    share_weight,
    query_token_stride,
    query_head_stride,
    block_stride,
    side_stride,
    offset_stride,
    head_stride,
    scale_block_stride,
    scale_side_stride,
    scale_offset_stride,
    scale_head_stride,
    table_stride,
    num_kv_heads,
    head_size,
    scale,
    v_scale,
    soft_cap,
    window,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    JOINS: tl.constexpr,
    PRODUCT: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    await_kernels_before(DEPENDENT)
    item, kv_head = tl.program_id(0) // num_kv_heads, tl.program_id(0) % num_kv_heads
    work = items + item * FIELDS
    seq, first_token, num_queries = tl.load(work), tl.load(work + 1), tl.load(work + 2)
    first_position, begin, end = tl.load(work + 3), tl.load(work + 4), tl.load(work + 5)
    if num_queries == 0:  # the launcher does not know how many items there are
        return

    row = tl.arange(0, ROWS)
    element = tl.arange(0, PADDED_SIZE)
    in_head = element < head_size
    is_row = row // GROUP < num_queries
    position = first_position + row // GROUP
    q_tile = query + first_token.to(tl.int64) * query_token_stride
    q_tile += kv_head * GROUP * query_head_stride
    q_rows = q_tile + row // GROUP * query_token_stride + row % GROUP * query_head_stride
    q_mask = is_row[:, None] & in_head[None, :]
    q = tl.load(q_rows[:, None] + element[None, :], mask=q_mask, other=0.0).to(PRODUCT)

    first_key = first_position * 0
    if HAS_WINDOW:
        first_key = tl.maximum(first_position - window + 1, 0)
    end_key = first_position + num_queries
    if not IS_CAUSAL:
        end_key = tl.load(context_lens + seq).to(tl.int32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED_SIZE], tl.float32)
    table = block_tables + seq.to(tl.int64) * table_stride
    cache = kv_cache + kv_head * head_stride
    for key_tile in range(begin, end):
        key = key_tile * KEYS + tl.arange(0, KEYS)
        is_key = (key >= first_key) & (key < end_key)  # other slots may hold a NaN
        k_rows = _key_rows(cache, table, key, is_key, block_stride, offset_stride, BLOCK_SIZE)
        k_mask = in_head[:, None] & is_key[None, :]
        v_mask = is_key[:, None] & in_head[None, :]
        k = tl.load(k_rows[None, :] + element[:, None], mask=k_mask, other=0.0)
        v_rows = k_rows + side_stride
        v = tl.load(v_rows[:, None] + element[None, :], mask=v_mask, other=0.0)
        visible = is_key[None, :]
        if IS_CAUSAL:
            visible &= key[None, :] <= position[:, None]
            if HAS_WINDOW:
                visible &= key[None, :] > position[:, None] - window
        elif HAS_WINDOW:
            visible &= tl.abs(key[None, :] - position[:, None]) < window
        factors, v_scales = scale, v_scale
        if HAS_SCALES:
            scales = token_scales + kv_head * scale_head_stride
            scales = _key_rows(
                scales, table, key, is_key, scale_block_stride, scale_offset_stride, BLOCK_SIZE
            )
            factors = scale * tl.load(scales, mask=is_key, other=0.0)[None, :]
            v_scales = tl.load(scales + scale_side_stride, mask=is_key, other=0.0)
        scores = _scores(q, k.to(PRODUCT), factors, soft_cap, HAS_CAP)
        scores = tl.where(visible, scores, float("-inf"))
        top, total, acc = _add_tile(top, total, acc, scores, v, v_scales, PRODUCT, HAS_SCALES)

    acc *= v_scale
    shares = tl.load(work + 7)
    is_whole = shares == 1
    if shares > 1:
        slot = tl.program_id(0)
        store_share(share_out, share_weight, slot, top, total, acc, is_row, ROWS, PADDED_SIZE)
        if JOINS:
            first_slot = tl.load(work + 6) * num_kv_heads + kv_head
            if is_last(arrived + first_slot, shares):
                total, acc = joined(
                    share_out,
                    share_weight,
                    first_slot,
                    num_kv_heads,
                    shares,
                    is_row,
                    ROWS,
                    PADDED_SIZE,
                )
                is_whole = True
    if is_whole:
        store_rows(
            out,
            acc,
            total,
            first_token,
            kv_head,
            num_kv_heads * GROUP,
            head_size,
            is_row,
            GROUP,
            ROWS,
            PADDED_SIZE,
        )


def attend(
    query: Tensor,
    kv_cache: Tensor,
    work: Work,
    *,
    block_tables: Tensor,
    scale: float,
    soft_cap: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    token_scales: Tensor | None = None,
    joins_inside: bool = True,
    dependent: bool = False,
) -> Tensor:
    """Computes the attention of one layer of a step that `work` divides among programs.

    Args:
        joins_inside: True if the last program of a tile joins the shares of its keys, False if a
            launch of its own does.
        dependent: see `launch_options`.
    """
    _check(query, kv_cache, token_scales, block_tables)
    num_heads, head_size = query.shape[1:]
    block_size, num_kv_heads = kv_cache.shape[2:4]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    tile = work.tile
    if not len(query):
        return out
    _paged_attention_kernel[(len(work.items) * num_kv_heads,)](
        query,
        kv_cache,
        kv_cache if token_scales is None else token_scales,
        block_tables,
        out,
        work.items,
        work.context_lens,
        work.arrived,
        *work.shares,
        *query.stride()[:2],
        *kv_cache.stride()[:4],
        *scale_strides(token_scales),
        block_tables.stride(0),
        num_kv_heads,
        head_size,
        scale * k_scale,
        v_scale,
        1.0 if soft_cap is None else soft_cap,
        0 if work.window is None else work.window,
        GROUP=num_heads // num_kv_heads,
        ROWS=tile.rows,
        KEYS=tile.keys,
        BLOCK_SIZE=block_size,
        PADDED_SIZE=max(LEAST_DOT, next_power_of_2(head_size)),
        IS_CAUSAL=work.is_causal,
        HAS_WINDOW=work.window is not None,
        HAS_CAP=soft_cap is not None,
        HAS_SCALES=token_scales is not None,
        JOINS=joins_inside,
        PRODUCT=product_type(query.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(dependent),
    )
    if len(work.arrived) and not joins_inside:
        join_shares(out, work.items, work.shares, num_kv_heads=num_kv_heads)
    return out


def _check(
    query: Tensor, kv_cache: Tensor, token_scales: Tensor | None, block_tables: Tensor
) -> None:
    check_tensors(OP, query, kv_cache, block_tables)
    check_cache(OP, kv_cache, token_scales, query)
    check(
        kv_cache.dim() == 5 and kv_cache.shape[1] == 2 and kv_cache.shape[4] == query.shape[2],
        "{}: the cache is {}, queries are {}",
        OP,
        kv_cache.shape,
        query.shape,
    )
    check(block_tables.stride(-1) == 1, f"{OP}: rows of tables must be contiguous")
    stride = kv_cache.stride(2)
    check(
        stride * kv_cache.shape[2] < 1 << 31,
        "{}: slots of a block are {} elements apart; too far for offsets of 32 bits",
        OP,
        stride,
    )

"""Chooses the experts of each token: softmax and the k highest, and what sorting needs, in one
kernel.

A program counts how often the tokens of its chunk choose each expert, and `places` sorts by that.
Where all tokens are one chunk the same program sorts them, which saves a launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton.experts.places import (
    TILES,
    Routed,
    sort_entries,
    write_order,
    write_tiles,
)
from signalbox_kernels.triton.launch import check, check_floats, check_tensors, next_power_of_2

MAX_EXPERTS = 512
_FEW_ELEMENTS = 2048
_MANY_ELEMENTS = 8192
"""Scores that a program holds, with few tokens and with many; it takes whole tokens."""
_MANY_TOKENS = 512
_MOST_ROWS = 64


@triton.jit
def _choose(score, is_expert, expert, K: tl.constexpr, PADDED_K: tl.constexpr):
    """Returns the k highest of each row, as shares of the softmax and as indices.

    Of equal scores the lowest index is first. A NaN is chosen last, and makes all shares NaN.

    Returns:
        shares, indices: [rows, PADDED_K].
        is_chosen: [rows, experts].
    """
    key = tl.where(score == score, score, float("-inf"))
    weight = tl.exp(score - tl.max(key, axis=1)[:, None])
    total = tl.sum(weight, axis=1)
    is_free = is_expert
    slot = tl.arange(0, PADDED_K)[None, :]
    shares = tl.zeros([score.shape[0], PADDED_K], tl.float32)
    indices = tl.zeros([score.shape[0], PADDED_K], tl.int32)
    for i in range(K):
        best = tl.max(tl.where(is_free, key, float("-inf")), axis=1)
        is_best = is_free & (key == best[:, None])
        index = tl.min(tl.where(is_best, expert, score.shape[1]), axis=1)
        is_taken = expert == index[:, None]
        share = tl.sum(tl.where(is_taken, weight, 0.0), axis=1) / total
        is_free = is_free & (expert != index[:, None])
        shares = tl.where(slot == i, share[:, None], shares)
        indices = tl.where(slot == i, index[:, None], indices)
    return shares, indices, is_expert & (is_free == 0)


@triton.jit(do_not_specialize=["num_tokens", "num_tiles", "tile_rows"])
def _route_kernel(
    logits,
    shares_out,
    indices_out,
    counts,
    order,
    tiles,
    row_stride,
    num_tokens,
    num_tiles,
    tile_rows,
    num_experts,
    K: tl.constexpr,
    PADDED_K: tl.constexpr,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    RENORMALISE: tl.constexpr,
    IS_ALONE: tl.constexpr,
    TILES: tl.constexpr,
):
    program = tl.program_id(0)
    row = program * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, EXPERTS)[None, :]
    is_row = row < num_tokens
    is_expert = is_row[:, None] & (expert < num_experts)
    source = logits + row.to(tl.int64)[:, None] * row_stride + expert
    score = tl.load(source, mask=is_expert, other=float("-inf")).to(tl.float32)
    score = tl.where(is_row[:, None], score, 0.0)
    shares, indices, is_chosen = _choose(score, is_expert, expert, K, PADDED_K)
    if RENORMALISE:
        shares = shares / tl.where(is_row, tl.sum(shares, axis=1), 1.0)[:, None]
    slot = tl.arange(0, PADDED_K)[None, :]
    entry = row[:, None] * K + slot
    is_entry = is_row[:, None] & (slot < K)
    tl.store(shares_out + entry, shares, mask=is_entry)
    num_of = tl.sum(is_chosen.to(tl.int32), axis=0)
    if IS_ALONE:
        write_tiles(tiles, num_of, 0, TILES, num_tiles, num_experts, tile_rows, TILES)
        begin = tl.cumsum(num_of, 0) - num_of
        write_order(order, row, is_row, indices, is_chosen, begin, expert, K, PADDED_K)
    else:
        tl.store(indices_out + entry, indices, mask=is_entry)
        tl.store(counts + program * EXPERTS + tl.arange(0, EXPERTS), num_of)


def route(logits: Tensor, *, k: int, renormalise: bool, tile_rows: int) -> Routed:
    """Chooses k experts of each token, and sorts the entries.

    Args:
        logits: [num_tokens, num_experts].
        renormalise: makes the shares of a token sum to 1.
        tile_rows: most entries of a tile.
    """
    _check(logits, k)
    num_tokens, num_experts = logits.shape
    sizes = _sizes(num_tokens, num_experts, k)
    num_chunks = -(-num_tokens // sizes["ROWS"])
    routed = _make_routed(logits, k, tile_rows)
    is_alone = num_chunks == 1
    indices = routed.order if is_alone else torch.empty_like(routed.order)
    counts = routed.order if is_alone else indices.new_empty(num_chunks, sizes["EXPERTS"])
    _route_kernel[(num_chunks,)](
        logits,
        routed.shares,
        indices,
        counts,
        routed.order,
        routed.tiles,
        logits.stride(0),
        num_tokens,
        len(routed.tiles),
        tile_rows,
        RENORMALISE=renormalise,
        IS_ALONE=is_alone,
        TILES=TILES,
        **sizes,
    )
    if not is_alone:
        sort_entries(routed, indices, counts, tile_rows=tile_rows, **sizes)
    return routed


def _sizes(num_tokens: int, num_experts: int, k: int) -> dict[str, int]:
    padded = next_power_of_2(num_experts)
    is_many = num_tokens > _MANY_TOKENS
    return {
        "num_experts": num_experts,
        "K": k,
        "PADDED_K": next_power_of_2(k),
        "ROWS": min(_MOST_ROWS, (_MANY_ELEMENTS if is_many else _FEW_ELEMENTS) // padded),
        "EXPERTS": padded,
        "num_warps": 8 if is_many else 4,
    }


def _make_routed(logits: Tensor, k: int, tile_rows: int) -> Routed:
    num_tokens, num_experts = logits.shape
    num_tiles = most_tiles(num_tokens * k, num_experts, tile_rows)
    return Routed(
        logits.new_empty(num_tokens, k, dtype=torch.float32),
        logits.new_empty(num_tokens * k, dtype=torch.int32),
        logits.new_empty(num_tiles, 3, dtype=torch.int32),
    )


def most_tiles(num_entries: int, num_experts: int, tile_rows: int) -> int:
    """Returns the most tiles that entries can need: each expert in use has one that is not full."""
    in_use = min(num_entries, num_experts)
    return in_use + (num_entries - in_use) // tile_rows


def _check(logits: Tensor, k: int) -> None:
    op = "mix_experts"
    check_tensors(op, logits)
    check_floats(op, logits)
    num_experts = logits.shape[1]
    check(num_experts <= MAX_EXPERTS, "{}: {} experts; at most {}", op, num_experts, MAX_EXPERTS)
    check(1 <= k <= num_experts, "{}: {} of {} experts a token", op, k, num_experts)

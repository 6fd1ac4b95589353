"""Joins the shares of a tile whose keys several programs took, as Flash-Decoding does (2023).

Each program leaves, for each of its rows, the attention over its keys, and the logarithm of the sum
of their weights (of base 2, -inf if no key is visible). Shares are added in their order, whoever
adds them: the last program of the tile to arrive, which waits for no other, or a launch of its own.
Both give the same bits.
"""

import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton.attention.work import FIELDS


@triton.jit
def store_share(
    share_out,
    share_weight,
    slot,
    top,
    total,
    acc,
    is_row,
    ROWS: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
):
    """Leaves a program's share in its slot."""
    row = slot * ROWS + tl.arange(0, ROWS)
    element = tl.arange(0, PADDED_SIZE)
    has_keys = total != 0.0  # true of a NaN, which must come out
    total = tl.where(has_keys, total, 1.0)
    weight = tl.where(has_keys, top + tl.log2(total), float("-inf"))
    tl.store(share_weight + row, weight, mask=is_row)
    target = share_out + row[:, None] * PADDED_SIZE + element[None, :]
    tl.store(target, acc / total[:, None], mask=is_row[:, None])


@triton.jit
def is_last(arrived, shares):
    """Counts a program of a tile that has stored its share; the last one resets the count.

    All threads have stored before one of them counts, which releases their stores to the device;
    what it reads of the count acquires those of the programs that have counted before.
    """
    tl.debug_barrier()
    before = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu")
    if before == shares - 1:
        tl.store(arrived, 0)
    return before == shares - 1


@triton.jit
def joined(
    share_out,
    share_weight,
    slot,
    slot_stride,
    shares,
    is_row,
    ROWS: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
):
    """Returns the sum of weights of each row of a tile, and the weighted sum of its shares."""
    row = tl.arange(0, ROWS)
    element = tl.arange(0, PADDED_SIZE)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED_SIZE], tl.float32)
    # One after the other, small shares would each take the memory's latency.
    for share in tl.range(0, shares, num_stages=4 if ROWS * PADDED_SIZE <= 4096 else 1):
        at = (slot + share * slot_stride) * ROWS + row
        weight = tl.load(share_weight + at, mask=is_row, other=0.0)
        part = share_out + at[:, None] * PADDED_SIZE + element[None, :]
        new_top = tl.maximum(top, weight)
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # inf - inf is NaN
        before, now = tl.exp2(top - shift), tl.exp2(weight - shift)
        total = total * before + now
        acc = acc * before[:, None]
        acc += tl.load(part, mask=is_row[:, None], other=0.0) * now[:, None]
        top = new_top
    return total, acc


@triton.jit
def store_rows(
    out,
    acc,
    total,
    first_token,
    kv_head,
    num_heads,
    head_size,
    is_row,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
):
    """Writes the attention of a tile's rows to `out`, [num_tokens, num_heads, head_size]."""
    row = tl.arange(0, ROWS)
    element = tl.arange(0, PADDED_SIZE)
    first = out + (first_token.to(tl.int64) * num_heads + kv_head * GROUP) * head_size
    inside = ((row // GROUP) * num_heads + row % GROUP) * head_size
    mask = is_row[:, None] & (element < head_size)[None, :]
    values = (acc / tl.where(is_row, total, 1.0)[:, None]).to(out.dtype.element_ty)
    tl.store(first + inside[:, None] + element[None, :], values, mask=mask)


@triton.jit
def _join_shares_kernel(
    items,
    share_out,
    share_weight,
    out,
    num_kv_heads,
    num_heads,
    head_size,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
):
    slot = tl.program_id(0)
    item = slot // num_kv_heads
    work = items + item * FIELDS
    shares = tl.load(work + 7)
    if (tl.load(work + 6) != item) | (shares == 1):
        return
    is_row = tl.arange(0, ROWS) // GROUP < tl.load(work + 2)
    total, acc = joined(
        share_out, share_weight, slot, num_kv_heads, shares, is_row, ROWS, PADDED_SIZE
    )
    kv_head = slot % num_kv_heads
    first_token = tl.load(work + 1)
    store_rows(
        out,
        acc,
        total,
        first_token,
        kv_head,
        num_heads,
        head_size,
        is_row,
        GROUP,
        ROWS,
        PADDED_SIZE,
    )


def join_shares(
    out: Tensor, items: Tensor, shares: tuple[Tensor, Tensor], *, num_kv_heads: int
) -> None:
    """Writes the tiles that were shared to `out`, [num_tokens, num_heads, head_size]."""
    num_slots, rows, padded_size = shares[0].shape
    num_heads, head_size = out.shape[1:]
    _join_shares_kernel[(num_slots,)](
        items,
        *shares,
        out,
        num_kv_heads,
        num_heads,
        head_size,
        GROUP=num_heads // num_kv_heads,
        ROWS=rows,
        PADDED_SIZE=padded_size,
        num_warps=4 if rows * padded_size <= 8192 else 8,
    )

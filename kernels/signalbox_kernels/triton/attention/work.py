"""Divides a step's attention among programs, on the device, by the lengths of its sequences.

A tile is some queries of a sequence, and its work is the tiles of keys that they see. A program
computes an item: a tile, or a share of a tile's keys (Flash-Decoding, Dao et al., 2023). The number
of programs of a launch that a graph has recorded is fixed, whatever the lengths are: one for each
tile, and `spare` more for shares. No program gets more key tiles than

    limit = max(least, ceil(sum of the work of all tiles / spare)),

and a sequence's tiles have ceil(work / limit) shares each, for the work of its last tile; or, with
a window on both sides, for the most that a tile can have. Shares past the first are then at most
sum / limit <= spare, so that they always fit, and the items of divided tiles are at most
2 * spare. With as many spare programs as the device runs at once, the longest program takes the
time that an even division would. Items of divided tiles come first: what starts last must not be
long.

FlashInfer's plan (Ye et al., 2024) searches the smallest such limit on the host; flash-attn 3
counts shares for each sequence in a kernel of its own. Here it is a formula that needs no search,
and the host, which does not wait for anything, need not know the result.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton.attention.tiles import Tile

FIELDS = tl.constexpr(8)
"""Fields of an item, int32: sequence, first token, queries (none: nothing to do), position of the
first query, first key tile, end of the key tiles, first item of the tile, items of the tile."""
_SEQS, _ITEMS = 256, 32
"""Sequences and items that a program of the kernel below looks at together."""


class Sharing(NamedTuple):
    """Rule by which programs share the keys of a tile."""

    spare: int
    """Programs of a K and V head beside one a tile; 0 shares nothing."""
    least_keys: int = 128
    """Keys that a program gets at least, if there are as many."""


class Work(NamedTuple):
    """The items of a step, for all layers with one window, and memory for their shares."""

    items: Tensor
    """[num_items, FIELDS] int32."""
    arrived: Tensor
    """[num_slots] int32: how many shares of a tile are done; 0 but while its programs run. A slot
    is an item that may be a share, and a K and V head."""
    shares: tuple[Tensor, Tensor]
    """[num_slots, rows, padded_size] and [num_slots, rows] float32; `shares.py` says of what."""
    tile: Tile
    is_causal: bool
    window: int | None
    context_lens: Tensor


@triton.jit
def _sequences(
    query_start,
    context_lens,
    first,
    num_seqs,
    window,
    SEQS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Returns the tiles of some sequences, and how many key tiles each of these has at most."""
    seq = first + tl.arange(0, SEQS)
    is_seq = seq < num_seqs
    start = tl.load(query_start + seq, mask=is_seq, other=0).to(tl.int32)
    num_queries = tl.load(query_start + seq + 1, mask=is_seq, other=0).to(tl.int32) - start
    context_len = tl.load(context_lens + seq, mask=is_seq, other=0).to(tl.int32)
    tiles = tl.cdiv(num_queries, QUERIES)
    keys = tl.cdiv(context_len, KEYS)
    if HAS_WINDOW:
        if IS_CAUSAL:  # the last tile has most
            position = context_len - num_queries + (tiles - 1) * QUERIES
            keys -= tl.maximum(position - window + 1, 0) // KEYS
        else:  # keys of a window on both sides, which need not begin where a tile does
            keys = tl.minimum(keys, (QUERIES + 2 * window - 4 + KEYS) // KEYS + 1)
    return seq, tiles, keys


@triton.jit
def _store_items(
    items,
    item,
    num_items,
    seq,
    tile,
    share,
    shares,
    query_start,
    context_lens,
    window,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Writes items, each a share of a tile of a sequence; there is none where that is negative."""
    is_found = seq >= 0
    start = tl.load(query_start + seq, mask=is_found, other=0).to(tl.int32)
    num_queries = tl.load(query_start + seq + 1, mask=is_found, other=0).to(tl.int32) - start
    context_len = tl.load(context_lens + seq, mask=is_found, other=0).to(tl.int32)
    first_query = tile * QUERIES
    position = context_len - num_queries + first_query
    queries = tl.where(is_found, tl.minimum(num_queries - first_query, QUERIES), 0)
    first_key = start * 0
    if HAS_WINDOW:
        first_key = tl.maximum(position - window + 1, 0)
    end_key = position + queries
    if not IS_CAUSAL:
        end_key = context_len
        if HAS_WINDOW:
            end_key = tl.minimum(position + queries + window - 1, context_len)
    begin = first_key // KEYS
    end = tl.cdiv(end_key, KEYS)
    length = tl.cdiv(end - begin, shares)
    begin += share * length
    end = tl.minimum(begin + length, end)

    field = items + item * FIELDS
    is_item = item < num_items
    tl.store(field, seq, mask=is_item)
    tl.store(field + 1, start + first_query, mask=is_item)
    tl.store(field + 2, queries, mask=is_item)
    tl.store(field + 3, position, mask=is_item)
    tl.store(field + 4, begin, mask=is_item)
    tl.store(field + 5, end, mask=is_item)
    tl.store(field + 6, item - share, mask=is_item)
    tl.store(field + 7, shares, mask=is_item)


@triton.jit(do_not_specialize=["num_seqs", "num_items", "num_arrived", "spare", "least", "window"])
def _plan_work_kernel(
    query_start,
    context_lens,
    items,
    arrived,
    num_seqs,
    num_items,
    num_arrived,
    spare,
    least,
    window,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SEQS: tl.constexpr,
    ITEMS: tl.constexpr,
):
    for first in range(tl.program_id(0) * ITEMS, num_arrived, tl.num_programs(0) * ITEMS):
        slot = first + tl.arange(0, ITEMS)
        tl.store(arrived + slot, slot * 0, mask=slot < num_arrived)

    work = tl.full([], 0, tl.int64)
    for first in range(0, num_seqs, SEQS):
        _, tiles, keys = _sequences(
            query_start,
            context_lens,
            first,
            num_seqs,
            window,
            SEQS,
            QUERIES,
            KEYS,
            IS_CAUSAL,
            HAS_WINDOW,
        )
        work += tl.sum(tiles.to(tl.int64) * keys, axis=0)
    limit = tl.maximum(tl.cdiv(work, tl.maximum(spare, 1)), least)
    limit = tl.where(spare > 0, limit, 1 << 30).to(tl.int32)

    whole = 0  # where the items of tiles that are not divided begin
    for first in range(0, num_seqs, SEQS):
        _, tiles, keys = _sequences(
            query_start,
            context_lens,
            first,
            num_seqs,
            window,
            SEQS,
            QUERIES,
            KEYS,
            IS_CAUSAL,
            HAS_WINDOW,
        )
        whole += tl.sum(tl.where(keys > limit, tiles * tl.cdiv(keys, limit), 0), axis=0)

    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    found = item * 0
    begin_of, shares_of = item * 0, item * 0
    divided = 0
    for first in range(0, num_seqs, SEQS):
        seq, tiles, keys = _sequences(
            query_start,
            context_lens,
            first,
            num_seqs,
            window,
            SEQS,
            QUERIES,
            KEYS,
            IS_CAUSAL,
            HAS_WINDOW,
        )
        shares = tl.cdiv(keys, limit)
        count = tiles * shares
        in_divided = tl.where(keys > limit, count, 0)
        in_whole = count - in_divided
        end = tl.where(
            keys > limit,
            divided + tl.cumsum(in_divided, axis=0),
            whole + tl.cumsum(in_whole, axis=0),
        )
        begin = end - count
        is_mine = (item[:, None] >= begin[None, :]) & (item[:, None] < end[None, :])
        found += tl.sum(tl.where(is_mine, seq[None, :] + 1, 0), axis=1)
        begin_of += tl.sum(tl.where(is_mine, begin[None, :], 0), axis=1)
        shares_of += tl.sum(tl.where(is_mine, shares[None, :], 0), axis=1)
        divided += tl.sum(in_divided, axis=0)
        whole += tl.sum(in_whole, axis=0)
    shares_of = tl.maximum(shares_of, 1)
    nth = item - begin_of
    _store_items(
        items,
        item,
        num_items,
        found - 1,
        nth // shares_of,
        nth % shares_of,
        shares_of,
        query_start,
        context_lens,
        window,
        QUERIES,
        KEYS,
        IS_CAUSAL,
        HAS_WINDOW,
    )


def most_tiles(num_tokens: int, num_seqs: int, queries: int) -> int:
    """Returns how many tiles of `queries` lengths that add up to `num_tokens` may have."""
    return (num_tokens + num_seqs * (queries - 1)) // queries


def plan_work(
    query_start: Tensor,
    context_lens: Tensor,
    *,
    num_tokens: int,
    num_kv_heads: int,
    group: int,
    padded_size: int,
    tile: Tile,
    sharing: Sharing,
    is_causal: bool,
    window: int | None,
) -> Work:
    """Launches the division of a step's work; the host does not learn the result."""
    num_seqs, queries = len(context_lens), tile.rows // group
    num_items = sharing.spare + most_tiles(num_tokens, num_seqs, queries)
    num_slots = min(2 * sharing.spare, num_items) * num_kv_heads
    device = context_lens.device
    parts = torch.empty(num_slots, tile.rows, padded_size, dtype=torch.float32, device=device)
    weights = torch.empty(num_slots, tile.rows, dtype=torch.float32, device=device)
    items = torch.empty(num_items, FIELDS.value, dtype=torch.int32, device=device)
    arrived = torch.empty(num_slots, dtype=torch.int32, device=device)
    _plan_work_kernel[(triton.cdiv(num_items, _ITEMS),)](
        query_start,
        context_lens,
        items,
        arrived,
        num_seqs,
        num_items,
        num_slots,
        sharing.spare,
        triton.cdiv(sharing.least_keys, tile.keys),
        0 if window is None else window,
        QUERIES=queries,
        KEYS=tile.keys,
        IS_CAUSAL=is_causal,
        HAS_WINDOW=window is not None,
        SEQS=_SEQS,
        ITEMS=_ITEMS,
    )
    return Work(items, arrived, (parts, weights), tile, is_causal, window, context_lens)

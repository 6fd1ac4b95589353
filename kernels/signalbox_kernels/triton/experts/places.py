"""Places the chosen entries: by expert, and in tiles of one expert each.

An entry is one of the k experts of one token. A counting sort without atomics, so that the order is
the same each time: each program finds the places of its own chunk of tokens from the counts of all.

How many tiles there are is known on the device only. The launcher takes the most that there can be
for the number of tokens, so that a launch depends on shapes alone; tiles in excess name no expert.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

_CHUNKS = 16
"""Chunks whose counts a program reads at a time."""
TILES = 16
"""Tiles that a program describes at a time."""


class Routed(NamedTuple):
    """Entries by expert. Entry i is choice i % k of token i // k."""

    shares: Tensor
    """[num_tokens, k] float32."""
    order: Tensor
    """[num_tokens * k] int32, the entries; those of an expert are neighbours, in ascending
    order."""
    tiles: Tensor
    """[num_tiles, 3] int32: an expert, where the tile begins in `order`, and where the expert's
    entries end. An unused tile has the expert -1."""


@triton.jit
def write_tiles(
    tiles,
    num_of,
    first_tile,
    tile_step,
    num_tiles,
    num_experts,
    tile_rows,
    TILES: tl.constexpr,
):
    """Describes every `tile_step`-th run of TILES tiles.

    Args:
        num_of: [experts], entries of each.
    """
    end = tl.cumsum(num_of, 0)[None, :]
    tile_end = tl.cumsum((num_of + tile_rows - 1) // tile_rows, 0)[None, :]
    for start in range(first_tile, num_tiles, tile_step):
        tile = start + tl.arange(0, TILES)
        is_past = tile_end <= tile[:, None]
        owner = tl.sum(is_past.to(tl.int32), axis=1)
        tile_in_owner = tile - tl.max(tl.where(is_past, tile_end, 0), axis=1)
        begin = tl.max(tl.where(is_past, end, 0), axis=1) + tile_in_owner * tile_rows
        owner_end = tl.min(tl.where(is_past, 0x7FFFFFFF, end), axis=1)
        is_tile = tile < num_tiles
        tl.store(tiles + tile * 3, tl.where(owner < num_experts, owner, -1), mask=is_tile)
        tl.store(tiles + tile * 3 + 1, begin, mask=is_tile)
        tl.store(tiles + tile * 3 + 2, owner_end, mask=is_tile)


@triton.jit
def write_order(
    order, row, is_row, indices, is_chosen, begin, expert, K: tl.constexpr, PADDED_K: tl.constexpr
):
    """Writes the entries of some rows to their places.

    Args:
        begin: [experts], place of these rows' first entry of each expert.
    """
    chosen = is_chosen.to(tl.int32)
    place = begin[None, :] + tl.cumsum(chosen, 0) - chosen
    slot = tl.arange(0, PADDED_K)[None, :]
    for i in range(K):
        index = tl.sum(tl.where(slot == i, indices, 0), axis=1)
        target = tl.sum(tl.where(expert == index[:, None], place, 0), axis=1)
        tl.store(order + target, row * K + i, mask=is_row)


@triton.jit(do_not_specialize=["num_tokens", "num_tiles", "num_chunks", "tile_rows"])
def _sort_kernel(
    indices_in,
    counts,
    order,
    tiles,
    num_tokens,
    num_tiles,
    num_chunks,
    tile_rows,
    num_experts,
    K: tl.constexpr,
    PADDED_K: tl.constexpr,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    TILES: tl.constexpr,
):
    program = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)[None, :]
    num_of = tl.zeros([EXPERTS], tl.int32)
    before = tl.zeros([EXPERTS], tl.int32)
    for start in range(0, num_chunks, CHUNKS):
        chunk = start + tl.arange(0, CHUNKS)[:, None]
        found = tl.load(counts + chunk * EXPERTS + expert, mask=chunk < num_chunks, other=0)
        num_of += tl.sum(found, axis=0)
        before += tl.sum(tl.where(chunk < program, found, 0), axis=0)
    write_tiles(
        tiles,
        num_of,
        program * TILES,
        num_chunks * TILES,
        num_tiles,
        num_experts,
        tile_rows,
        TILES,
    )
    row = program * ROWS + tl.arange(0, ROWS)
    is_row = row < num_tokens
    slot = tl.arange(0, PADDED_K)[None, :]
    is_entry = is_row[:, None] & (slot < K)
    indices = tl.load(indices_in + row[:, None] * K + slot, mask=is_entry, other=EXPERTS)
    is_chosen = tl.zeros([ROWS, EXPERTS], tl.int1)
    for i in range(K):
        is_chosen = is_chosen | (expert == tl.sum(tl.where(slot == i, indices, 0), axis=1)[:, None])
    begin = tl.cumsum(num_of, 0) - num_of + before
    write_order(order, row, is_row, indices, is_chosen, begin, expert, K, PADDED_K)


def sort_entries(
    routed: Routed, indices: Tensor, counts: Tensor, *, tile_rows: int, **sizes: int
) -> None:
    """Writes `order` and `tiles`.

    Args:
        indices: [num_tokens * k] int32, the chosen experts.
        counts: [num_chunks, experts] int32, entries of each expert in each chunk.
        sizes: as of the kernel that counted.
    """
    _sort_kernel[(len(counts),)](
        indices,
        counts,
        routed.order,
        routed.tiles,
        len(routed.shares),
        len(routed.tiles),
        len(counts),
        tile_rows,
        CHUNKS=_CHUNKS,
        TILES=TILES,
        **sizes,
    )

"""Sizes of attention's tiles, by the type of the elements, the size of a head, and the GPU.

They are chosen by the compiler's figures: tiles of 16 bits spill no register, and all but prefills
of 9.0 and 10.0 take at most 99 KiB of shared memory, what a block has on GPUs of capability 8.6,
8.9 and 12.0. None has been timed on a GPU. K and V of a tile lie behind its block table, so that of
`num_stages` loads in flight two are the table's: five keep two tiles of K and V in flight, three
only one.
"""

from typing import NamedTuple

LEAST_DOT = 16
"""Least length of each side of a product that a matrix instruction takes."""


class Tile(NamedTuple):
    """The sizes of what one program computes at a time."""

    rows: int
    """Queries of a tile, times the heads that share a K and V head."""
    keys: int
    num_warps: int
    num_stages: int


def choose_tile(
    *,
    num_bytes: int,
    padded_size: int,
    is_prefill: bool,
    has_token_scales: bool,
    capability: tuple[int, int],
) -> Tile:
    """Returns the tile for elements of `num_bytes` and heads of `padded_size` elements.

    Args:
        has_token_scales: True if K and V have scales of tokens and heads, which take registers.
    """
    if num_bytes == 4:
        return _float32_tile(padded_size, is_prefill=is_prefill)
    if not is_prefill:
        return Tile(LEAST_DOT, 64 if padded_size <= 128 else 32, num_warps=4, num_stages=5)
    if padded_size > 128:
        return Tile(32, 32, num_warps=4, num_stages=3)
    if has_token_scales and padded_size <= 64:  # with 8 warps a thread has 8 bytes
        return Tile(64, 32, num_warps=4, num_stages=5)
    if capability[0] in (9, 10):  # two warpgroups, and matrix instructions of 64 or 128 rows
        return Tile(128, 32 if has_token_scales else 64, num_warps=8, num_stages=5)
    if has_token_scales:
        return Tile(64, 32, num_warps=8, num_stages=3)
    if padded_size > 64:  # with 64 rows ptxas spills, to run twice as many warps
        return Tile(128, 32, num_warps=8, num_stages=3)
    return Tile(64, 64, num_warps=8, num_stages=3)


def _float32_tile(padded_size: int, *, is_prefill: bool) -> Tile:
    """Products of float32 take no matrix instruction, and twice the registers."""
    rows = 32 if is_prefill else LEAST_DOT
    keys = 32 if padded_size <= (64 if is_prefill else 128) else 16
    return Tile(rows, keys, num_warps=4 if padded_size <= 64 else 8, num_stages=3)

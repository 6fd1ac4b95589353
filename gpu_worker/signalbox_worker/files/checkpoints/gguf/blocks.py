"""Blocks of GGUF's types as native programs hold them, with the values that the gguf package gives.

Most types are held as they are. Values of the ternary types are those of Q2_K with scales of 1; of
the types with grids they are whole numbers, of which a type has at most 16, under scales of 16
values. So what grids hold in 1.6 to 3.4 bits takes 4.6. The package decodes them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gguf.quants
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from signalbox_kernels.storage import (
    BOOK_BYTES,
    BOOKS,
    QUANTISED,
    Storage,
    codebook_blocks,
    nvfp4_blocks,
)

Bytes = NDArray[np.uint8]

_ONE = np.float16(1).view(np.uint16)
_Kind = GGMLQuantizationType


class _Grid(NamedTuple):
    """Scales of a type with grids, and the factor that goes with them."""

    scales: Callable[[Bytes], NDArray[Any]]
    """Returns the scales of blocks, each s for 2 s + 1: 16, or 8 of twice as many values."""
    unit: float
    held: Storage


def _nibbles(start: int, end: int) -> Callable[[Bytes], NDArray[Any]]:
    def scales(blocks: Bytes) -> NDArray[Any]:
        taken = blocks[:, start:end]
        pairs: Bytes = np.stack([taken & 15, taken >> 4], axis=-1)
        return pairs.reshape(len(blocks), -1)

    return scales


def _words(
    dtype: str, start: int, end: int, *shifts: int, bits: int, step: int = 1
) -> Callable[[Bytes], NDArray[Any]]:
    """Takes scales out of each word, or each `step`th."""

    def scales(blocks: Bytes) -> NDArray[Any]:
        words = np.ascontiguousarray(blocks[:, start:end]).view(dtype)[:, step - 1 :: step]
        taken = words[:, :, None] >> np.array(shifts, dtype=dtype) & (1 << bits) - 1
        found: NDArray[Any] = taken.reshape(len(blocks), -1)
        return found

    return scales


_GRIDS: Mapping[GGMLQuantizationType, _Grid] = {
    _Kind.IQ1_S: _Grid(_words("<u2", 34, 50, 12, bits=3), 1 / 8, Storage.BOOK_IQ1),
    _Kind.IQ1_M: _Grid(_words("<u2", 48, 56, 0, 3, 6, 9, bits=3), 1 / 8, Storage.BOOK_IQ1),
    _Kind.IQ2_XXS: _Grid(_words("<u4", 2, 66, 28, bits=4, step=2), 1 / 8, Storage.BOOK_IQ2),
    _Kind.IQ2_XS: _Grid(_nibbles(66, 74), 1 / 8, Storage.BOOK_IQ2),
    _Kind.IQ2_S: _Grid(_nibbles(74, 82), 1 / 8, Storage.BOOK_IQ2),
    _Kind.IQ3_XXS: _Grid(_words("<u4", 66, 98, 28, bits=4), 1 / 4, Storage.BOOK_IQ3_XXS),
    _Kind.IQ3_S: _Grid(_nibbles(106, 110), 1.0, Storage.BOOK_IQ3_S),
}
_OTHERS: Mapping[GGMLQuantizationType, Storage] = {
    **{kind: grid.held for kind, grid in _GRIDS.items()},
    _Kind.TQ1_0: Storage.Q2_K,
    _Kind.TQ2_0: Storage.Q2_K,
    _Kind.MXFP4: Storage.MXFP4,
    _Kind.NVFP4: Storage.NVFP4,
}
_NAN = 0x7F
"""A scale of NVFP4 that counts as zero."""


def held_as(kind: GGMLQuantizationType) -> Storage | None:
    """Returns how native programs hold blocks of a type; None for a type that they do not."""
    return Storage(int(kind)) if is_held_as_stored(kind) else _OTHERS.get(kind)


def is_held_as_stored(kind: GGMLQuantizationType) -> bool:
    """Says whether native programs hold blocks of a type as they are."""
    return int(kind) in QUANTISED


def held_bytes(num_bytes: int, kind: GGMLQuantizationType) -> int:
    """Returns what blocks of a type take where they are held."""
    held, (size, block_bytes) = held_as(kind), GGML_QUANT_SIZES[kind]
    if held is None or is_held_as_stored(kind):
        return num_bytes
    in_block = held.block_bytes - (BOOK_BYTES if held in BOOKS else 0)
    return num_bytes // block_bytes * size // held.block_size * in_block


def held_blocks(blocks: Bytes, kind: GGMLQuantizationType) -> Bytes:
    """Returns blocks as they are held, as many rows."""
    if kind in _GRIDS:
        return _with_book(blocks, kind)
    match _OTHERS.get(kind):
        case Storage.Q2_K:
            return _as_q2_k(blocks, kind)
        case Storage.MXFP4:
            return np.concatenate([blocks[:, :1], _neighbours(blocks[:, 1:])], axis=1)
        case Storage.NVFP4:
            return _as_nvfp4(blocks)
    return blocks


def _neighbours(pairs: Bytes) -> Bytes:
    """Returns codes of 4 bits whose bytes have one of the first half and one of the second, two
    neighbours in each byte."""
    codes: Bytes = np.concatenate([pairs & 15, pairs >> 4], axis=-1)
    both: Bytes = codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)
    return both


def _as_nvfp4(blocks: Bytes) -> Bytes:
    scales: Bytes = np.where(blocks[:, :4] == _NAN, 0, blocks[:, :4] & _NAN).astype(np.uint8)
    codes = _neighbours(blocks[:, 4:].reshape(len(blocks), 4, 8)).reshape(len(blocks), -1)
    return nvfp4_blocks(codes, scales, np.ones(len(blocks), dtype=np.float32))


def multiply_nvfp4(held: Bytes, factors: NDArray[np.float32]) -> None:
    """Multiplies the values of blocks of NVFP4 as they are held, each with a factor."""
    blocks = held.reshape(len(factors), -1)
    of_blocks = np.ascontiguousarray(blocks[:, :4]).view(np.float32) * factors[:, None]
    blocks[:, :4] = of_blocks.view(np.uint8)


def _book(kind: GGMLQuantizationType) -> NDArray[np.int8]:
    """Returns the numbers that values of a type are multiples of, ascending."""
    form = getattr(gguf.quants, kind.name)
    if delta := getattr(
        form, "delta", None
    ):  # which is added to a value of the grid, or subtracted
        numbers = {round(value / delta) + sign for value in form.grid_map for sign in (-1, 1)}
    else:
        numbers = {sign * value for value in form.grid_map for sign in (-1, 1)}
    return np.array(sorted(numbers), dtype=np.int8)


def _with_book(blocks: Bytes, kind: GGMLQuantizationType) -> Bytes:
    scales, unit, _ = _GRIDS[kind]
    factors, plain = _without_factors(blocks, kind)
    values = dequantize(plain.reshape(1, -1), kind).reshape(len(blocks), 16, -1)
    multiples = 2 * scales(blocks).astype(np.int8) + 1
    multiples = np.repeat(multiples, 16 // multiples.shape[1], axis=1)
    numbers = values / (multiples[..., None] * np.float32(unit))
    book = _book(kind)
    codes = np.searchsorted(book, numbers.astype(np.int8)).astype(np.uint8)
    return codebook_blocks(codes.reshape(len(blocks), -1), book, multiples, factors * unit)


def _without_factors(
    blocks: Bytes, kind: GGMLQuantizationType
) -> tuple[NDArray[np.float32], Bytes]:
    """Returns the half that all values of a block are multiplied by, and the blocks with 1."""
    plain = blocks.copy()
    if kind is not _Kind.IQ1_M:
        factors = np.ascontiguousarray(blocks[:, :2]).view(np.float16)[:, 0]
        plain[:, :2] = _ONE.reshape(1).view(np.uint8)
        return factors.astype(np.float32), plain
    shifts = np.array([0, 4, 8, 12], dtype=np.uint16)  # four bits are above each word's scales
    words = np.ascontiguousarray(blocks[:, -8:]).view("<u2")
    factors = np.bitwise_or.reduce(words >> 12 << shifts, axis=1).astype(np.uint16)
    plain[:, -8:] = (words & 0xFFF | (_ONE >> shifts & 15) << 12).view(np.uint8)
    return factors.view(np.float16).astype(np.float32), plain


def _as_q2_k(blocks: Bytes, kind: GGMLQuantizationType) -> Bytes:
    """Returns -1, 0 and 1 as 0, 1 and 2 less a minimum of 1."""
    plain = blocks.copy()
    plain[:, -2:] = _ONE.reshape(1).view(np.uint8)
    values = dequantize(plain.reshape(1, -1), kind).reshape(len(blocks), 2, 4, 32)
    codes = (values + 1).astype(np.uint8)
    held = np.empty((len(blocks), Storage.Q2_K.block_bytes), dtype=np.uint8)
    held[:, :16] = 0x11
    held[:, 16:80] = np.bitwise_or.reduce(
        codes << np.array([[0], [2], [4], [6]], np.uint8), 2
    ).reshape(len(blocks), -1)
    held[:, 80:82] = held[:, 82:] = blocks[:, -2:]
    return held

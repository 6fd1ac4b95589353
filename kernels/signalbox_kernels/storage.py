"""Matrices as files store them, and the conversion of floats to quantised blocks.

A block is a run of values along a row: 32 or 256 of them, or one that is a float. Whole numbers of
checkpoints (`INTEGERS`) are in blocks of the columns that share a scale: the scale, the zero point
as a byte, and the codes in order. Codes of floats (`FLOAT_CODES`) have a float32 as scale, or the
exponent of a power of two. Native programs compute with every type without converting a matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels import pages
from signalbox_kernels.floats import BFLOAT16, AnyArray, to_float32
from signalbox_kernels.native import library
from signalbox_kernels.rounding import Rounding

GROUP = 32
"""Values that share a scale, along the sum, on both sides of a product."""


class Storage(IntEnum):
    """Types of the blocks that a matrix is stored in, with ggml's numbers."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30
    NVFP4 = 0x80
    """E2M1 under E4M3 scales of 16 columns and a float32, which is that of the whole row."""
    BOOK_IQ1 = 0x84
    """Places in a book of 16 whole numbers, of all values that GGUF's IQ1 types have, under whole
    numbers of 16 columns and a float32; and so on."""
    BOOK_IQ2 = 0x85
    BOOK_IQ3_XXS = 0x86
    BOOK_IQ3_S = 0x87
    INT4_G32 = 0x100
    INT4_G64 = 0x101
    INT4_G128 = 0x102
    INT4_G32_BF16 = 0x104
    INT4_G64_BF16 = 0x105
    INT4_G128_BF16 = 0x106
    INT8_G32 = 0x108
    INT8_G64 = 0x109
    INT8_G128 = 0x10A
    INT8_G32_BF16 = 0x10C
    INT8_G64_BF16 = 0x10D
    INT8_G128_BF16 = 0x10E
    E4M3 = 0x200
    NF4 = 0x201
    FP4 = 0x202
    MXFP4 = 0x203
    INT8 = 0x204
    """Whole numbers with a sign under scales of 32 bits; multiplied as floats."""

    @property
    def is_quantised(self) -> bool:
        """True for whole numbers with scales, by which coded rows can be multiplied; False for
        floats and their codes."""
        return self.block_size > 1 and not self.is_float_codes

    @property
    def is_float_codes(self) -> bool:
        """True for codes that are multiplied as the floats that they stand for, alone; what those
        of MXFP4 stand for is a whole number when doubled."""
        return self >= Storage.E4M3 and self is not Storage.MXFP4

    @property
    def is_integers(self) -> bool:
        """True for whole numbers with zero points, in groups of `block_size`."""
        return Storage.INT4_G32 <= self < Storage.E4M3

    @property
    def bits(self) -> int:
        """Bits of a code of whole numbers."""
        return 8 if self & 8 else 4

    @property
    def scale_dtype(self) -> np.dtype[Any]:
        """Type of the scales of whole numbers."""
        return _FLOATS[Storage.BF16 if self & 4 else Storage.F16]

    @property
    def block_size(self) -> int:
        return 32 << (self & 3) if self.is_integers else _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        if self.is_integers:
            return _HEAD_BYTES + self.block_size * self.bits // 8
        return _BLOCKS[self][1]


_FLOATS: dict[Storage, np.dtype[Any]] = {
    Storage.F32: np.dtype(np.float32),
    Storage.F16: np.dtype(np.float16),
    Storage.BF16: BFLOAT16,
}
_BLOCKS = {
    Storage.F32: (1, 4),
    Storage.F16: (1, 2),
    Storage.BF16: (1, 2),
    Storage.Q4_0: (32, 18),
    Storage.Q4_1: (32, 20),
    Storage.Q5_0: (32, 22),
    Storage.Q5_1: (32, 24),
    Storage.Q8_0: (32, 34),
    Storage.Q2_K: (256, 84),
    Storage.Q3_K: (256, 110),
    Storage.Q4_K: (256, 144),
    Storage.Q5_K: (256, 176),
    Storage.Q6_K: (256, 210),
    Storage.IQ4_NL: (32, 18),
    Storage.IQ4_XS: (256, 136),
    Storage.NVFP4: (32, 22),
    Storage.BOOK_IQ1: (256, 164),
    Storage.BOOK_IQ2: (256, 164),
    Storage.BOOK_IQ3_XXS: (256, 164),
    Storage.BOOK_IQ3_S: (256, 164),
    Storage.E4M3: (128, 132),
    Storage.NF4: (64, 36),
    Storage.FP4: (64, 36),
    Storage.MXFP4: (32, 17),
    Storage.INT8: (128, 132),
}
"""Columns and bytes of a block."""
FLOAT_CODES = tuple(kind for kind in Storage if kind.is_float_codes)
"""The types of codes of floats."""
BOOKS = (Storage.BOOK_IQ1, Storage.BOOK_IQ2, Storage.BOOK_IQ3_XXS, Storage.BOOK_IQ3_S)
"""The types of places in a book, which differ by the book alone."""
BOOK_BYTES = 16
"""Bytes of their blocks that are the book, of which a packed panel has one."""
QUANTISED = tuple(kind for kind in Storage if kind not in (*_FLOATS, *FLOAT_CODES))
"""The types that are whole numbers with scales."""
_POSITIVE_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
_POSITIVE_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)
FLOATS_OF_4_BITS: dict[Storage, NDArray[np.float32]] = {
    Storage.NF4: np.array(_NF4, dtype=np.float32),
    Storage.FP4: np.array([*_POSITIVE_FP4, *(0.0 - x for x in _POSITIVE_FP4)], dtype=np.float32),
    Storage.MXFP4: np.array([*_POSITIVE_E2M1, *(-x for x in _POSITIVE_E2M1)], dtype=np.float32),
}
"""Value of each code: NF4 (QLoRA: Dettmers et al., 2023), FP4 as bitsandbytes has it, E2M1.
"""
INTEGERS = tuple(kind for kind in QUANTISED if kind.is_integers)
"""The types of whole numbers with zero points."""
_HEAD_BYTES = 3
"""Bytes before the codes of a block of whole numbers: its scale and its zero point."""


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix in blocks along its rows, which may be floats of 16 bits.

    Args:
        shape: [rows, columns], before the padding that whole blocks may need.
        read: returns the blocks, [rows, bytes of a row] uint8; a file's are not in memory before.
        read_rows: returns those from a row to before another, on any thread; None if `read` has to
            make all of them.
        order: the columns in the order in which the blocks have them; None if they are in theirs.
        rounding: what the left side of a product is rounded to; None leaves it to the product.
    """

    type: Storage
    shape: tuple[int, ...]
    read: Callable[[], NDArray[np.uint8]]
    order: NDArray[np.int32] | None = None
    rounding: Rounding | None = None
    read_rows: Callable[[int, int], NDArray[np.uint8]] | None = None

    @property
    def blocks(self) -> NDArray[np.uint8]:
        return self.read()

    def rows(self, start: int, count: int) -> "StoredMatrix":
        read_rows = self.read_rows

        def read() -> NDArray[np.uint8]:
            return self.read()[start : start + count] if read_rows is None else of_rows(0, count)

        def of_rows(first: int, end: int) -> NDArray[np.uint8]:
            assert read_rows is not None
            return read_rows(start + first, start + end)

        shape = (count, self.shape[1])
        own = None if read_rows is None else of_rows
        return replace(self, shape=shape, read=read, read_rows=own)

    def has_whole_blocks(self, columns: range) -> bool:
        """Says whether some columns are whole blocks, one after the other."""
        if columns == range(self.shape[1]):
            return True
        size = self.type.block_size
        ends_whole = columns.stop % size == 0 or columns.stop == self.shape[1]
        return self.order is None and columns.start % size == 0 and ends_whole

    def columns(self, columns: range) -> "StoredMatrix":
        """Returns some columns, which are whole blocks."""
        assert self.has_whole_blocks(columns)
        kind = self.type
        first, end = columns.start // kind.block_size, -(-columns.stop // kind.block_size)
        taken = slice(first * kind.block_bytes, end * kind.block_bytes)
        shape, read_rows = (self.shape[0], len(columns)), self.read_rows
        own = None if read_rows is None else (lambda start, end: read_rows(start, end)[:, taken])
        return replace(self, shape=shape, read=lambda: self.read()[:, taken], read_rows=own)


Matrix = AnyArray | StoredMatrix


def stored(matrix: Matrix) -> StoredMatrix:
    """Returns a matrix of floats as blocks of one, without a copy; others as they are."""
    if isinstance(matrix, StoredMatrix):
        return matrix

    def rows(start: int, end: int) -> NDArray[np.uint8]:
        return np.ascontiguousarray(matrix[start:end]).view(np.uint8)

    shape, kind = matrix.shape, storage_of(matrix.dtype)
    return StoredMatrix(kind, shape, lambda: rows(0, shape[0]), read_rows=rows)


def read_by_rows(
    kind: Storage, shape: tuple[int, ...], read_rows: Callable[[int, int], Matrix]
) -> StoredMatrix:
    """Returns a matrix of which some rows can be read alone.

    Args: read_rows: returns the rows from one to before another, as a matrix of the same type.
    """

    def blocks(start: int, end: int) -> NDArray[np.uint8]:
        return stored(read_rows(start, end)).blocks

    return StoredMatrix(kind, shape, lambda: blocks(0, shape[0]), read_rows=blocks)


def storage_of(dtype: np.dtype[Any]) -> Storage:
    """Returns the type that floats are stored as."""
    return next(kind for kind, own in _FLOATS.items() if own == dtype)


def integer_blocks(
    codes: NDArray[np.uint8], zeros: NDArray[np.uint8], scales: AnyArray, storage: Storage
) -> NDArray[np.uint8]:
    """Returns the blocks of whole numbers.

    Args:
        codes: [rows, columns].
        zeros, scales: [rows, groups], the latter in the type of the storage.
    """
    (rows, columns), size = codes.shape, storage.block_size
    count = -(-columns // size)
    blocks = pages.empty((rows, count, storage.block_bytes), np.dtype(np.uint8))
    blocks[:, :, :2] = np.ascontiguousarray(scales).view(np.uint8).reshape(rows, count, 2)
    blocks[:, :, 2] = zeros
    whole = np.pad(codes, ((0, 0), (0, -columns % size))).reshape(rows, count, size)
    is_byte = storage.bits == 8
    blocks[:, :, _HEAD_BYTES:] = whole if is_byte else whole[:, :, 0::2] | whole[:, :, 1::2] << 4
    return blocks.reshape(rows, -1)


def float_code_blocks(
    codes: NDArray[np.uint8], scales: AnyArray, storage: Storage
) -> NDArray[np.uint8]:
    """Returns the blocks of codes of floats.

    Args:
        codes: [rows, columns], or of 4 bits [rows, columns / 2], the first of two in the low half.
        scales: [rows, blocks] float32, of E4M3 less than 256; of MXFP4 exponents plus 127 as bytes.
    """
    (rows, count), head = scales.shape, scales.itemsize
    size = storage.block_bytes - head
    blocks = pages.empty((rows, count, storage.block_bytes), np.dtype(np.uint8))
    blocks[:, :, :head] = np.ascontiguousarray(scales).view(np.uint8).reshape(rows, count, head)
    whole = np.pad(codes, ((0, 0), (0, count * size - codes.shape[1])))
    blocks[:, :, head:] = whole.reshape(rows, count, size)
    return blocks.reshape(rows, -1)


def nvfp4_blocks(
    codes: NDArray[np.uint8], scales: NDArray[np.uint8], factors: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Returns the blocks of NVFP4.

    Args:
        codes: [rows, columns / 2], the first of two in the low half of its byte; columns are a
            multiple of 16.
        scales: [rows, columns / 16] E4M3 that are no NaN.
        factors: [rows], less than 256.
    """
    rows, count = len(codes), -(-codes.shape[1] // 16)
    blocks = pages.empty((rows, count, Storage.NVFP4.block_bytes), np.dtype(np.uint8))
    blocks[:, :, :4] = (factors / 2).astype(np.float32)[:, None].view(np.uint8)[:, None]
    blocks[:, :, 4:6] = np.pad(scales, ((0, 0), (0, -scales.shape[1] % 2))).reshape(rows, count, 2)
    blocks[:, :, 6:] = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 16))).reshape(rows, count, 16)
    return blocks.reshape(rows, -1)


def codebook_blocks(
    codes: NDArray[np.uint8],
    book: NDArray[np.int8],
    multiples: NDArray[np.int8],
    factors: NDArray[np.float32],
) -> NDArray[np.uint8]:
    """Returns the blocks of places in a book, [blocks, bytes of a block].

    Args:
        codes: [blocks, 256].
        book: at most 16 numbers.
        multiples: [blocks, 16] scales of 16 codes each, by the block's factor.
        factors: [blocks].
    """
    count = len(codes)
    blocks = pages.empty((count, BOOKS[0].block_bytes), np.dtype(np.uint8))
    blocks[:, :4] = factors.astype(np.float32)[:, None].view(np.uint8)
    blocks[:, 4:20] = np.resize(book, BOOK_BYTES).view(np.uint8)
    blocks[:, 20:36] = multiples.view(np.uint8)
    blocks[:, 36:] = codes[:, 0::2] | codes[:, 1::2] << 4
    return blocks


def quantise(matrix: AnyArray, storage: Storage) -> StoredMatrix:
    """Makes blocks of floats: Q8_0, symmetric by the largest value, or Q4_1, by least squares."""
    rows, columns = matrix.shape
    blocks = np.empty((rows, -(-columns // GROUP) * storage.block_bytes), dtype=np.uint8)
    padded = np.pad(to_float32(matrix), ((0, 0), (0, -columns % GROUP)))
    values = np.ascontiguousarray(padded)
    count = values.size // GROUP
    if library().sb_quantise(storage, values.ctypes.data, count, blocks.ctypes.data):
        raise ValueError(f"floats can be made Q8_0 and Q4_1, not {storage.name}")
    return StoredMatrix(storage, (rows, columns), lambda: blocks)

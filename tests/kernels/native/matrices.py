"""Matrices of every storage, with the values that they stand for: of blocks, the gguf package's."""

from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from signalbox_kernels.floats import BFLOAT16, FLOAT8_E4M3, AnyArray, to_dtype, to_float32
from signalbox_kernels.storage import (
    BOOKS,
    FLOAT_CODES,
    FLOATS_OF_4_BITS,
    INTEGERS,
    QUANTISED,
    Storage,
    StoredMatrix,
    codebook_blocks,
    float_code_blocks,
    integer_blocks,
    nvfp4_blocks,
    stored,
)

FLOAT32 = np.dtype(np.float32)
FLOAT_TYPES: dict[Storage, np.dtype[Any]] = {
    Storage.F32: FLOAT32,
    Storage.F16: np.dtype(np.float16),
    Storage.BF16: BFLOAT16,
}
FLOAT_FACTORS = (Storage.NVFP4, *BOOKS)
_MOST = {Storage.IQ4_XS: 0.001, Storage.NVFP4: 0.001, **dict.fromkeys(BOOKS, 1e-4)}
"""Largest scales and factors of random blocks whose numbers are large: 0.01 of others."""
SCALES_AT: dict[int, tuple[int, ...]] = {
    Storage.Q4_0: (0,),
    Storage.Q4_1: (0, 2),
    Storage.Q5_0: (0,),
    Storage.Q5_1: (0, 2),
    Storage.Q8_0: (0,),
    Storage.Q2_K: (80, 82),
    Storage.Q3_K: (108,),
    Storage.Q4_K: (0, 2),
    Storage.Q5_K: (0, 2),
    Storage.Q6_K: (208,),
    Storage.IQ4_NL: (0,),
    Storage.IQ4_XS: (0,),
}
"""Bytes of a block that are half-precision scales, by ggml's numbers of types; others begin with
one."""


def make_floats(*shape: int, dtype: np.dtype[Any] = FLOAT32, seed: int = 0) -> AnyArray:
    """Normal random numbers, rounded to a type of `signalbox_kernels.floats.DTYPES`."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return to_dtype(values, dtype)


def make_stored(storage: Storage, n: int, k: int, *, seed: int = 0) -> StoredMatrix:
    if storage in QUANTISED:
        return make_blocks(storage, n, k, seed=seed)
    if storage in FLOAT_CODES:
        return make_float_codes(storage, n, k, seed=seed)
    return stored(make_floats(n, k, dtype=FLOAT_TYPES[storage], seed=seed))


def make_blocks(kind: Storage, n: int, k: int, *, seed: int = 0) -> StoredMatrix:
    """Random codes under random scales; k is a multiple of the type's block, or of 32 for whole
    numbers, whose last block may be smaller."""
    rng, most = np.random.default_rng(seed), _MOST.get(kind, 0.01)
    if kind is Storage.MXFP4:
        return make_float_codes(kind, n, k, seed=seed)
    if kind in FLOAT_FACTORS:
        return make_under_floats(kind, n, k, rng.uniform(-most, most, (n, -(-k // 256))), seed=seed)
    if kind in INTEGERS:
        scales = rng.uniform(-0.01, 0.01, (n, -(-k // kind.block_size)))
        return make_integers(kind, rng, k, to_dtype(scales, kind.scale_dtype))
    blocks = rng.integers(0, 256, (n, k // kind.block_size, kind.block_bytes), dtype=np.uint8)
    for at in SCALES_AT[kind]:
        scales = rng.uniform(-most, most, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    packed = blocks.reshape(n, -1)
    return StoredMatrix(kind, (n, k), lambda: packed)


def make_under_floats(
    kind: Storage, n: int, k: int, factors: NDArray[Any], *, seed: int = 0
) -> StoredMatrix:
    """Random codes and scales.

    Args:
        factors: [rows, blocks of 256]; NVFP4 takes the first of a row.
    """
    rng, of_blocks = np.random.default_rng(seed), factors.astype(np.float32)
    if kind is Storage.NVFP4:
        codes = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
        scales = rng.integers(0, 127, (n, k // 16), dtype=np.uint8)
        blocks = nvfp4_blocks(codes, scales, of_blocks[:, 0])
    else:
        count = n * k // 256
        codes = rng.integers(0, 16, (count, 256), dtype=np.uint8)
        multiples = rng.integers(-128, 128, (count, 16), dtype=np.int8)
        book = rng.integers(-128, 128, 16, dtype=np.int8)
        blocks = codebook_blocks(codes, book, multiples, of_blocks.reshape(-1)).reshape(n, -1)
    return StoredMatrix(kind, (n, k), lambda: blocks)


def make_integers(
    kind: Storage, rng: np.random.Generator, k: int, scales: AnyArray
) -> StoredMatrix:
    """Random codes and zero points, of which the first ones are the least and the largest."""
    most = 2**kind.bits
    codes = rng.integers(0, most, (len(scales), k), dtype=np.uint8)
    zeros = rng.integers(0, most, scales.shape, dtype=np.uint8)
    codes[0], codes[:, 0] = most - 1, 0
    zeros[0], zeros[:, 0] = 0, most - 1
    blocks = integer_blocks(codes, zeros, scales, kind)
    return StoredMatrix(kind, codes.shape, lambda: blocks)


def make_float_codes(
    kind: Storage, n: int, k: int, *, scales: tuple[float, ...] = (), seed: int = 0
) -> StoredMatrix:
    """Random codes, which are not NaN, with the first and last ones in each row.

    Args:
        k: a multiple of 32; the last block may be smaller.
        scales: those that blocks have in turn, of MXFP4 powers of two; random ones without any.
    """
    rng, of_blocks = np.random.default_rng(seed), (n, -(-k // kind.block_size))
    num_bytes = k if kind in (Storage.E4M3, Storage.INT8) else k // 2
    codes = rng.integers(0, 256, (n, num_bytes), dtype=np.uint8)
    codes[:, 0], codes[:, 1] = 0, 255
    if kind is Storage.E4M3:
        codes[(codes & 0x7F) == 0x7F] ^= 1
    if kind is Storage.MXFP4:
        exponents = np.resize(np.log2(scales or (2**-9, 2**-6, 2**-7)), of_blocks)
        blocks = float_code_blocks(codes, (exponents + 127).astype(np.uint8), kind)
    else:
        of_one = 0.01 if kind in (Storage.E4M3, Storage.INT8) else 1.0
        random = rng.uniform(-of_one, of_one, of_blocks)
        chosen = np.resize(scales, of_blocks) if scales else random
        blocks = float_code_blocks(codes, chosen.astype(np.float32), kind)
    return StoredMatrix(kind, (n, k), lambda: blocks)


def make_extreme(kind: Storage, n: int) -> StoredMatrix:
    """Halves that are subnormal, largest or zero, of both signs, under random and extreme codes."""
    if kind is Storage.MXFP4:
        return make_float_codes(kind, n, 3 * 256, scales=(2.0**-127, 2.0**-120, 1.0, 2.0**7))
    if kind in FLOAT_FACTORS:
        floats = np.array([2.0**-140, -(2.0**-126) / 3, 0.0, 255.9, -255.9])
        return make_under_floats(kind, n, 3 * 256, np.resize(floats, (n, 3)))
    if kind in INTEGERS:
        halves = np.array([2.0**-24, -(2.0**-15), 0.0, 65504.0, -65504.0], dtype=np.float32)
        of_groups = np.resize(halves, (n, 3 * 256 // kind.block_size))
        scales = to_dtype(of_groups, kind.scale_dtype)
        return make_integers(kind, np.random.default_rng(0), 3 * 256, scales)
    matrix = make_blocks(kind, n, 3 * 256)
    blocks = matrix.blocks.reshape(n, -1, kind.block_bytes).copy()
    blocks[::3] = 255  # largest codes and scales of scales, or -1
    blocks[1::3] = 128  # the least signed bytes
    halves = np.array([2.0**-24, -(2.0**-15), 0.0, 65504.0, -65504.0], dtype=np.float16)
    for step, at in enumerate(SCALES_AT[kind]):
        chosen = np.arange(blocks.shape[0] * blocks.shape[1]) * (step + 1) % len(halves)
        scales = halves[chosen].reshape(blocks.shape[:2])
        blocks[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    packed = blocks.reshape(n, -1)
    return StoredMatrix(kind, matrix.shape, lambda: packed)


def values_of(matrix: StoredMatrix) -> NDArray[np.float32]:
    """[rows, columns]."""
    if matrix.type in (*FLOAT_CODES, Storage.MXFP4):
        return _float_code_values(matrix)
    if matrix.type not in QUANTISED:
        return to_float32(matrix.blocks.view(FLOAT_TYPES[matrix.type]))
    if matrix.type in INTEGERS:
        return _integer_values(matrix)
    if matrix.type in FLOAT_FACTORS:
        return _values_under_floats(matrix)
    values: NDArray[np.float32] = dequantize(matrix.blocks, GGMLQuantizationType(int(matrix.type)))
    return values[:, : matrix.shape[1]]


def _values_under_floats(matrix: StoredMatrix) -> NDArray[np.float32]:
    """A scale times a factor is rounded, and so is a number times that."""
    blocks = matrix.blocks.reshape(-1, matrix.type.block_bytes)
    factors = np.ascontiguousarray(blocks[:, :4]).view(np.float32)
    start = 4 if matrix.type is Storage.NVFP4 else 20
    end = start + matrix.type.block_size // 16
    if matrix.type is Storage.NVFP4:
        scales = to_float32(np.ascontiguousarray(blocks[:, start:end]).view(FLOAT8_E4M3)) * factors
        book = 2 * FLOATS_OF_4_BITS[Storage.MXFP4] + np.float32(0)  # a whole number has no -0
    else:
        scales = blocks[:, start:end].view(np.int8) * factors
        book = blocks[0, 4:20].view(np.int8).astype(np.float32)
    codes = np.stack([blocks[:, end:] & 15, blocks[:, end:] >> 4], axis=-1)
    values: NDArray[np.float32] = book[codes.reshape(*scales.shape, 16)] * scales[..., None]
    return values.reshape(matrix.shape[0], -1)[:, : matrix.shape[1]]


def _float_code_values(matrix: StoredMatrix) -> NDArray[np.float32]:
    (rows, columns), kind = matrix.shape, matrix.type
    blocks, head = matrix.blocks.reshape(rows, -1, kind.block_bytes), 4
    if kind is Storage.MXFP4:
        head = 1
        scales = np.ldexp(np.float32(1), blocks[:, :, :1].astype(np.int32) - 127)
    else:
        scales = np.ascontiguousarray(blocks[:, :, :4]).view(np.float32)
    codes = np.ascontiguousarray(blocks[:, :, head:])
    if kind is Storage.E4M3:
        values = to_float32(codes.view(FLOAT8_E4M3))
    elif kind is Storage.INT8:
        values = codes.view(np.int8).astype(np.float32)
    else:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], -1)
        values = FLOATS_OF_4_BITS[kind][codes] + np.float32(0)  # a whole number has no -0
    whole: NDArray[np.float32] = (values * scales).reshape(rows, -1)
    return whole[:, :columns]


def _integer_values(matrix: StoredMatrix) -> NDArray[np.float32]:
    (rows, columns), kind = matrix.shape, matrix.type
    blocks = matrix.blocks.reshape(rows, -1, kind.block_bytes)
    scales = to_float32(np.ascontiguousarray(blocks[:, :, :2]).view(kind.scale_dtype))
    codes = blocks[:, :, 3:]
    if kind.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*blocks.shape[:2], -1)
    values = (codes.astype(np.float32) - blocks[:, :, 2:3]) * scales
    whole: NDArray[np.float32] = values.reshape(rows, -1)
    return whole[:, :columns]


def parts_of(matrix: StoredMatrix) -> bytes:
    """Returns the blocks as threads make them that pack a matrix, each some rows."""
    assert matrix.read_rows is not None
    middle, rows = matrix.shape[0] // 3, matrix.shape[0]
    return matrix.read_rows(0, middle).tobytes() + matrix.read_rows(middle, rows).tobytes()

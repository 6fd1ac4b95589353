"""Types of embeddings' elements."""

import numpy as np
import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_kernels.floats import to_bfloat16, to_float32
from signalbox_router.generation.pooling.embed_dtypes import (
    EMBED_DTYPES,
    PACKED,
    EmbedDtype,
    check_dtype,
    converted,
    packed,
)

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}


def make_vectors(size: int = 64) -> np.ndarray:
    scales = np.logspace(-6, 4, 11, dtype=np.float32)[:, None]
    values = np.random.default_rng(3).standard_normal((len(scales), size), dtype=np.float32)
    return values * scales


@pytest.mark.parametrize("dtype", EMBED_DTYPES)
def test_the_bytes_are_the_numbers_in_either_order_and_of_each_vector_alone(
    dtype: EmbedDtype,
) -> None:
    vectors = make_vectors()
    numbers, content = converted(vectors, dtype), packed(vectors, dtype)
    width = WIDTHS.get(dtype, 1)
    num_elements = vectors.size // (8 if dtype in PACKED else 1)
    assert len(content) == width * num_elements
    assert content == b"".join(packed(one, dtype) for one in vectors)
    turned = np.frombuffer(content, np.uint8).reshape(-1, width)[:, ::-1].tobytes()
    assert packed(vectors, dtype, is_big_endian=True) == turned
    if dtype != "bfloat16":
        np.testing.assert_array_equal(np.frombuffer(content, numbers.dtype), numbers.ravel())


def test_whole_numbers_keep_directions_within_half_a_unit() -> None:
    vectors = make_vectors()
    codes = converted(vectors, "int8").astype(np.float32)
    units = np.abs(vectors).max(axis=1, keepdims=True) / 127
    assert (np.abs(codes * units - vectors) <= units * 0.5001).all()
    assert (np.abs(codes).max(axis=1) == 127).all()
    np.testing.assert_array_equal(converted(vectors, "uint8"), codes + 128)
    assert not converted(np.zeros(8, np.float32), "int8").any()


def test_floats_of_16_bits_are_rounded_to_the_nearest() -> None:
    vectors = make_vectors()
    expected = to_bfloat16(vectors)
    np.testing.assert_array_equal(converted(vectors, "bfloat16"), to_float32(expected))
    assert packed(vectors, "bfloat16") == expected.tobytes()
    np.testing.assert_array_equal(converted(vectors, "float16"), vectors.astype(np.float16))
    assert np.isfinite(converted(np.array([1e30], np.float32), "float16")).all()


@pytest.mark.parametrize("dtype", PACKED)
def test_signs_fill_their_numbers_or_are_refused(dtype: EmbedDtype) -> None:
    vector = np.array([3, -4, 0, 1, 1, -1, 1, -1], np.float32)
    offset = 128 if dtype == "binary" else 0
    assert converted(vector, dtype).tolist() == [0b10111010 - offset]
    check_dtype(dtype, size=8, field="embed_dtype")
    with pytest.raises(InvalidArgument, match="int8 for vectors of 12 elements"):
        check_dtype(dtype, size=12, field="embed_dtype")

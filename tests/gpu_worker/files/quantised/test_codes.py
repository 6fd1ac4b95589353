"""Packings of 4-bit codes are read as AutoAWQ and AutoGPTQ wrote them.

`int4_packings.json` has what their published packers made of the same codes and zero points.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from signalbox_kernels.floats import AnyArray
from signalbox_worker.files.quantised import codes as packings
from signalbox_worker.files.quantised.codes import NUMPY, ArrayLibrary, IntegerCodes
from signalbox_worker.models.layers.int4 import TORCH

RECORDED = json.loads(Path(__file__).with_name("int4_packings.json").read_text())
PLACE_OF_OUTPUT = {"awq": [0, 4, 1, 5, 2, 6, 3, 7], "gptq": [0, 1, 2, 3, 4, 5, 6, 7]}


def unpack(
    packing: str, tensors: dict[str, AnyArray], library: ArrayLibrary, **options: Any
) -> IntegerCodes:
    arrays: dict[str, Any] = dict(tensors)
    if library is TORCH:
        arrays = {end: torch.from_numpy(array) for end, array in tensors.items()}
    arrays["scales"] = None
    if packing == "awq":
        return packings.unpack_awq(arrays, library)
    is_first = not packing.endswith("v2")
    return packings.unpack_gptq(arrays, library, stores_zeros_less_one=is_first, **options)


@pytest.mark.parametrize("library", [NUMPY, TORCH])
@pytest.mark.parametrize("packing", ["awq", "gptq", "gptq desc_act"])
def test_published_packings_are_read(packing: str, library: ArrayLibrary) -> None:
    packed = RECORDED["packed"][packing]
    tensors = {end: np.array(words, dtype=np.int32) for end, words in packed.items()}
    matrix = unpack(packing, tensors, library)
    assert np.asarray(matrix.codes).tolist() == RECORDED["codes"]
    assert np.asarray(matrix.zeros).tolist() == RECORDED["zeros"]
    if packing != "awq":
        assert np.asarray(matrix.group_index).tolist() == packed["g_idx"]


@pytest.mark.parametrize("library", [NUMPY, TORCH])
def test_every_code_is_read_at_every_place(library: ArrayLibrary) -> None:
    """One code that is not zero, in a word of a row of words."""
    for code in range(16):
        for place in range(8):
            word = np.array([[code << 4 * place]], dtype=np.uint32).view(np.int32)
            zeros = np.zeros((1, 1), np.int32)
            along_outputs = unpack("awq", {"qweight": word, "qzeros": word}, library)
            output = PLACE_OF_OUTPUT["awq"].index(place)
            expected = [code * (index == output) for index in range(8)]
            assert np.asarray(along_outputs.codes).ravel().tolist() == expected
            assert np.asarray(along_outputs.zeros).ravel().tolist() == expected
            along_columns = unpack("gptq v2", {"qweight": word, "qzeros": zeros}, library)
            expected = [code * (index == place) for index in range(8)]
            assert np.asarray(along_columns.codes).tolist() == [expected]


@pytest.mark.parametrize("library", [NUMPY, TORCH])
def test_zero_points_less_one_borrow_from_their_neighbours(library: ArrayLibrary) -> None:
    zeros = np.arange(64).reshape(8, 8) * 5 % 16  # zero points of 0 at the start and within
    words = (zeros.astype(np.uint64) << np.arange(0, 32, 4, dtype=np.uint64)).sum(axis=1)
    stored = (words - 0x11111111).astype(np.uint32).view(np.int32)[:, None]
    codes = np.zeros((1, 8), np.int32)
    first = unpack("gptq", {"qweight": codes, "qzeros": stored}, library)
    assert np.asarray(first.zeros).tolist() == zeros.tolist()
    plain = words.astype(np.uint32).view(np.int32)[:, None]
    second = unpack("gptq v2", {"qweight": codes, "qzeros": plain}, library)
    assert np.asarray(second.zeros).tolist() == zeros.tolist()


@pytest.mark.parametrize("library", [NUMPY, TORCH])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq v2"])
@pytest.mark.parametrize("less", [0, 1])
def test_zero_points_of_symmetric_files_are_the_middle(
    library: ArrayLibrary, bits: int, version: str, less: int
) -> None:
    """Whichever of the two formats a file says, its zero points are 8, or 128, stored so or less
    one; those of an asymmetric file are what its format says."""
    middle, in_word = 1 << bits - 1, 32 // bits
    word = sum(middle - less << bits * i for i in range(in_word))
    stored = np.full((2, 3), word, dtype=np.uint32).view(np.int32)
    codes = np.zeros((1, 3 * in_word), np.int32)
    tensors = {"qweight": codes, "qzeros": stored}
    symmetric = unpack(version, tensors, library, bits=bits, is_symmetric=True)
    assert (np.asarray(symmetric.zeros) == middle).all()
    plain = unpack(version, tensors, library, bits=bits, is_symmetric=False)
    expected = middle - less + (version == "gptq")
    assert np.asarray(plain.zeros).tolist() == [[expected] * 3 * in_word] * 2


def test_one_other_zero_point_makes_a_file_asymmetric() -> None:
    stored = np.full((1, 2), 0x88888888, dtype=np.uint32)
    stored[0, 1] = 0x88888887
    tensors = {"qweight": np.zeros((1, 16), np.int32), "qzeros": stored.view(np.int32)}
    zeros = unpack("gptq", tensors, NUMPY, is_symmetric=True).zeros
    assert zeros.tolist() == [[9] * 8 + [8] + [9] * 7]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [8, 11])
def test_codes_along_rows_are_around_the_middle(bits: int, rows: int) -> None:
    """Each code and zero point at its place; widths that fill no word are padded."""
    columns, middle, in_word = 37, 1 << bits - 1, 32 // bits
    rng = np.random.default_rng(0)
    values = rng.integers(-middle, middle, (rows, columns))
    zeros = rng.integers(-middle, middle, (rows, 2))

    def pack(signed: AnyArray) -> AnyArray:
        padded = np.pad(signed + middle, ((0, 0), (0, -signed.shape[1] % in_word)))
        parts = padded.reshape(len(signed), -1, in_word).astype(np.uint64)
        words = (parts << np.arange(0, 32, bits, dtype=np.uint64)).sum(axis=-1)
        return words.astype(np.uint32).view(np.int32)

    tensors = {
        "weight_packed": pack(values),
        "weight_scale": np.ones((rows, 2), np.float32),
        "weight_shape": np.array([rows, columns]),
    }
    symmetric = packings.unpack_along_rows(tensors, NUMPY, bits=bits)
    assert packings.decode(symmetric, group_size=32).tolist() == values.tolist()
    tensors["weight_zero_point"] = pack(zeros.T).T  # along outputs
    matrix = packings.unpack_along_rows(tensors, NUMPY, bits=bits)
    expected = values - zeros[:, np.arange(columns) // 32]
    assert packings.decode(matrix, group_size=32).tolist() == expected.tolist()


def test_an_index_of_minus_ones_is_none() -> None:
    index = np.array([1, 0, 1, 0], dtype=np.int32)
    tensors = {
        "weight_packed": np.array([[0x0000BA98]], dtype=np.int32),
        "weight_scale": np.array([[1.0, 10.0]], dtype=np.float32),
        "weight_shape": np.array([1, 4]),
        "weight_g_idx": index,
    }
    ordered = packings.unpack_along_rows(tensors, NUMPY, bits=4)
    assert packings.decode(ordered, group_size=2).tolist() == [[0, 1, 20, 3]]
    tensors["weight_g_idx"] = np.full(4, -1)
    plain = packings.unpack_along_rows(tensors, NUMPY, bits=4)
    assert packings.decode(plain, group_size=2).tolist() == [[0, 1, 20, 30]]

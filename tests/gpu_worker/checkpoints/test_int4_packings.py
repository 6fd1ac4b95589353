"""Packings of 4-bit codes are read as AutoAWQ and AutoGPTQ wrote them.

`int4_packings.json` has what their published packers made of the same codes and zero points.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.checkpoints import int4_packings
from gpu_worker.checkpoints.int4_packings import NUMPY, ArrayLibrary, Int4Codes
from gpu_worker.config import ModelError
from gpu_worker.layers.int4 import TORCH
from signalbox_kernels.floats import AnyArray

RECORDED = json.loads(Path(__file__).with_name("int4_packings.json").read_text())
PLACE_OF_OUTPUT = {"awq": [0, 4, 1, 5, 2, 6, 3, 7], "gptq": [0, 1, 2, 3, 4, 5, 6, 7]}


def unpack(packing: str, tensors: dict[str, AnyArray], library: ArrayLibrary) -> Int4Codes:
    arrays: dict[str, Any] = dict(tensors)
    if library is TORCH:
        arrays = {end: torch.from_numpy(array) for end, array in tensors.items()}
    arrays["scales"] = None
    if packing == "awq":
        return int4_packings.unpack_awq(arrays, library)
    is_first = not packing.endswith("v2")
    return int4_packings.unpack_gptq(arrays, library, stores_zeros_less_one=is_first)


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
def test_words_of_another_size_are_refused(library: ArrayLibrary) -> None:
    words = np.zeros((16, 1), dtype=np.int64)
    for packing in ("awq", "gptq"):
        with pytest.raises(ModelError, match="int64; use a checkpoint with words of 32 bits"):
            unpack(packing, {"qweight": words, "qzeros": words}, library)

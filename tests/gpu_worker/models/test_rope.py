"""Frequencies and angles of the rotation beside those of transformers and PyTorch."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.config import ModelError
from signalbox_worker.models.rope_config import read_rotation

_LENGTH = {"max_position_embeddings": 32768}
_ORIGINAL = {"original_max_position_embeddings": 8192}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": _LLAMA3 | _ORIGINAL,
    "yarn": {"rope_type": "yarn", "factor": 4.0} | _ORIGINAL,
    "yarn-mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn-ramp": {"rope_type": "yarn", "factor": None, "truncate": False, **_ORIGINAL},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + i / 8 for i in range(32)],
        "long_factor": [2.0 + i for i in range(32)],
        **_ORIGINAL,
    },
}


def ulps(ours: FloatArray, theirs: FloatArray) -> int:
    """Returns the largest distance, counted in float32 numbers between the two."""
    ordered = [
        np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
        for bits in (values.view(np.int32).astype(np.int64) for values in (ours, theirs))
    ]
    return int(np.abs(ordered[0] - ordered[1]).max())


@pytest.mark.parametrize("head_size", [64, 80, 128])
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6])
def test_frequencies_are_within_one_rounding_of_those_of_pytorch(
    theta: float, head_size: int
) -> None:
    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    ours = read_rotation(_LENGTH | {"rope_theta": theta}).config(head_size).inv_freq(head_size)
    # A power of PyTorch's may be the other neighbour; so may its reciprocal then.
    assert ulps(ours, (1.0 / theta**exponents).numpy()) <= 1


@pytest.mark.parametrize("window", [2048, 65536])
@pytest.mark.parametrize("part", [1.0, 0.7])  # of 64, that is 44
@pytest.mark.parametrize("scaling", _SCALINGS)
def test_scaled_rotations_are_those_of_transformers(scaling: str, part: float, window: int) -> None:
    parameters = {"rope_theta": 500000.0, "partial_rotary_factor": part, **_SCALINGS[scaling]}
    for name in {"short_factor", "long_factor"} & parameters.keys():
        parameters[name] = parameters[name][: int(32 * part)]
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=8, rope_parameters=dict(parameters), **_LENGTH
    )
    make = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    theirs, factor = make(config, torch.device("cpu"), seq_len=window)
    read = read_rotation(_LENGTH | {"rope_parameters": parameters}, rotates_part=True)
    cos, sin = read.config(64).cos_sin(64, window)
    assert cos.shape == (window, int(64 * part) // 2)
    # Two roundings of the power and its reciprocal, and one of each of some five operations.
    np.testing.assert_allclose(np.arctan2(sin[1], cos[1]), theirs.numpy(), rtol=8 * 2.0**-24)
    np.testing.assert_allclose(cos[0], factor, rtol=2.0**-23)


@pytest.mark.parametrize("part", [0, 0.02, 0.3, 1.5])  # 0, 1, 19 and 96 elements
def test_a_part_of_a_head_that_is_no_even_number_of_its_elements_is_refused(part: float) -> None:
    config = _LENGTH | {"rope_theta": 1e4, "partial_rotary_factor": part}
    with pytest.raises(ModelError, match=f"partial_rotary_factor {float(part)} is not supported"):
        read_rotation(config, rotates_part=True).config(64)


def test_angles_are_within_one_rounding_of_those_of_pytorch() -> None:
    rope = read_rotation(_LENGTH | {"rope_theta": 1e4}).config(64)
    radians = torch.outer(torch.arange(8192.0), torch.from_numpy(rope.inv_freq(64)))
    cos, sin = rope.cos_sin(64, 8192)
    assert ulps(cos, radians.cos().numpy()) <= 1
    assert ulps(sin, radians.sin().numpy()) <= 1

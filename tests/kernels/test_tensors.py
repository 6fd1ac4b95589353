"""Floats in NumPy arrays beside tensors: the same conversions, over the same memory."""

import numpy as np
import pytest
import torch

from signalbox_kernels.floats import DTYPES, to_bfloat16, to_float32
from signalbox_kernels.torch.tensors import as_array, as_tensor

_SPECIAL = [0.0, -0.0, 1e-45, -3e-39, 3.4e38, np.inf, -np.inf, np.nan]


def make_floats() -> torch.Tensor:
    """All kinds of numbers, with ties between two neighbours in bfloat16 among them."""
    bits = torch.arange(1 << 16, dtype=torch.int32) << 16
    ties = (bits[:: 1 << 4] | 0x8000).view(torch.float32)
    random = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    return torch.cat([torch.tensor(_SPECIAL), ties, random])


def test_bfloat16_is_rounded_as_pytorch_rounds_it() -> None:
    values = make_floats()
    ours, theirs = as_tensor(to_bfloat16(values.numpy())), values.to(torch.bfloat16)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_every_bfloat16_is_widened_as_pytorch_widens_it() -> None:
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16)
    widened = torch.from_numpy(to_float32(as_array(halves)))
    torch.testing.assert_close(widened, halves.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_tensor_and_its_array_share_memory(dtype: torch.dtype) -> None:
    tensor = torch.ones(3, 4, dtype=dtype)
    array = as_array(tensor)
    assert array.shape == (3, 4)
    assert array.dtype == DTYPES[str(dtype).removeprefix("torch.")]
    as_tensor(array)[1, 2] = 5.0
    assert to_float32(array)[1, 2] == tensor[1, 2] == 5.0

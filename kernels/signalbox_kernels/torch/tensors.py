"""Tensors on the CPU and NumPy arrays over the same memory, bfloat16 and E4M3 included."""

import torch
from torch import Tensor

from signalbox_kernels.floats import BFLOAT16, FLOAT8_E4M3, AnyArray


def as_tensor(array: AnyArray) -> Tensor:
    """Returns a tensor over an array's memory."""
    if array.dtype == FLOAT8_E4M3:
        return torch.from_numpy(array.view("u1")).view(torch.float8_e4m3fn)
    if array.dtype != BFLOAT16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view("<i2")).view(torch.bfloat16)


def as_array(tensor: Tensor) -> AnyArray:
    """Returns an array over a tensor's memory."""
    if tensor.dtype is torch.float8_e4m3fn:
        codes: AnyArray = tensor.view(torch.uint8).numpy()
        return codes.view(FLOAT8_E4M3)
    if tensor.dtype is not torch.bfloat16:
        array: AnyArray = tensor.numpy()
        return array
    bits: AnyArray = tensor.view(torch.int16).numpy()
    return bits.view(BFLOAT16)

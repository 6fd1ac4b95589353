"""The random numbers of `signalbox_kernels.random` by PyTorch, on any device."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_TOKEN_FACTOR = 0x9E3779B1
_FACTORS = (0x21F0AAAD, 0x735A2D97, 0x846CA68B)


def token_hashes(keys: NDArray[np.uint64], token_ids: Tensor) -> Tensor:
    """Hashes token ids under each row's key.

    Args:
        keys: [num_rows] uint64.
        token_ids: [size] or [num_rows, size] int32.

    Returns:
        [num_rows, size] int32; the bits are the unsigned hash.
    """
    return _hashes(_halves(keys).to(token_ids.device), token_ids)


def _halves(keys: NDArray[np.uint64]) -> Tensor:
    """Returns [num_rows, 2] int32, low and high half; little-endian."""
    return torch.from_numpy(keys.view(np.int32).reshape(-1, 2).copy())


def _hashes(halves: Tensor, token_ids: Tensor) -> Tensor:
    low, high = halves[:, :1], halves[:, 1:]
    x = token_ids * _signed(_TOKEN_FACTOR) + low
    x = _fold(x, 16).mul_(_signed(_FACTORS[0]))
    x = _fold(x, 15).add_(high).mul_(_signed(_FACTORS[1]))
    x = _fold(x, 15).mul_(_signed(_FACTORS[2]))
    return _fold(x, 16)


def exponentials(keys: NDArray[np.uint64], token_ids: Tensor) -> Tensor:
    """Returns the race's E, [num_rows, size] float32; the arguments are those of token_hashes."""
    return race_of(_halves(keys).to(token_ids.device), token_ids)


def race_of(halves: Tensor, token_ids: Tensor) -> Tensor:
    """Returns the race's E for keys that are on the device: [num_rows, 2] int32, low and high."""
    hashes = _hashes(halves, token_ids)
    uniform = hashes.view(torch.uint32).to(torch.float32).mul_(2.0**-32)
    uniform.clamp_(min=2.0**-33)  # only 0 is below it
    return uniform.neg_().log1p_().neg_()


def _fold(x: Tensor, shift: int) -> Tensor:
    """Returns x ^ (x >> shift), the shift logical, in place."""
    return x.bitwise_xor_((x >> shift).bitwise_and_((1 << (32 - shift)) - 1))


def _signed(factor: int) -> int:
    """Returns the int32 with the same bits."""
    return factor - (1 << 32) if factor >= 1 << 31 else factor

"""Counter-based random numbers: a draw is a pure function of (seed, branch, position, token).

Nothing is stored, so a draw depends neither on the batch nor on the worker, and a sequence that is
preempted, moved or replayed draws the same tokens again. The idea is that of Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Every implementation, in whatever language,
must give these bits:

    key (64 bits; all sums, products and shifts modulo 2^64):
        key = mix64(mix64(mix64(seed) + branch) + position)
        mix64(z): z += 0x9E3779B97F4A7C15                       (the finaliser of splitmix64)
                  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9
                  z = (z ^ z >> 27) * 0x94D049BB133111EB
                  return z ^ z >> 31

    hash of a token (32 bits; modulo 2^32), with low and high halves of the key:
        x = token_id * 0x9E3779B1 + low(key)
        x = (x ^ x >> 16) * 0x21F0AAAD
        x = ((x ^ x >> 15) + high(key)) * 0x735A2D97
        x = (x ^ x >> 15) * 0x846CA68B
        return x ^ x >> 16

    uniform (float32, in (0, 1]): float32(x) * 2^-32, rounded to nearest; 2^-33 where x is 0
    exponential (float32): E = -log1p(-uniform); infinite at uniform 1

A token is drawn from weights p by the exponential race: argmax(p[i] / E[i]).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_TOKEN_FACTOR = 0x9E3779B1
_FACTORS = (0x21F0AAAD, 0x735A2D97, 0x846CA68B)


def race_keys(
    seed: NDArray[np.uint64], branch: NDArray[np.int64], position: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Returns the keys, [num_rows] uint64."""
    with np.errstate(over="ignore"):
        key = _mix64(seed.astype(np.uint64))
        key = _mix64(key + branch.astype(np.uint64))
        return _mix64(key + position.astype(np.uint64))


def _mix64(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


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

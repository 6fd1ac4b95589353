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
from numpy.typing import NDArray


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

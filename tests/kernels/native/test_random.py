"""Keys of draws, against the words of its documentation in plain Python integers."""

import numpy as np

from signalbox_kernels.random import race_keys

MASK64 = (1 << 64) - 1


def mix64(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def race_key(*, seed: int, branch: int, position: int) -> int:
    return mix64((mix64((mix64(seed) + branch) & MASK64) + position) & MASK64)


def make_keys(rows: list[tuple[int, int, int]]) -> np.ndarray:
    seed, branch, position = zip(*rows, strict=True)
    return race_keys(
        np.array(seed, dtype=np.uint64),
        np.array(branch, dtype=np.int64),
        np.array(position, dtype=np.int64),
    )


ROWS = [(0, 0, 1), (0, 1, 1), (0, 0, 2), (2**64 - 1, 3, 131071), (0xDEADBEEF << 20, 7, 12345)]


def test_keys_match_the_scalar_reference() -> None:
    expected = [race_key(seed=s, branch=b, position=p) for s, b, p in ROWS]
    assert make_keys(ROWS).tolist() == expected
    assert len(set(expected)) == len(ROWS)

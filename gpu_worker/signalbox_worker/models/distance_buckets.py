"""Buckets of the distances between tokens, whose attention has a learned bias for each bucket.

As in T5 (Raffel et al., 2020): near distances have buckets of their own, farther ones share those
that grow with the logarithm, and keys before a query have other buckets than those behind it.
"""

import numpy as np
from numpy.typing import NDArray

_MOST_DISTANCE = 128
"""Distance from which on all share the last bucket."""


def distance_buckets(num_buckets: int, num_positions: int) -> NDArray[np.int64]:
    """Returns the bucket of each distance, from a key num_positions - 1 places before its query to
    one as many behind it."""
    apart = np.arange(1 - num_positions, num_positions)
    half = num_buckets // 2
    exact, distance = half // 2, np.abs(apart)
    growth = np.log(np.maximum(distance, exact) / exact) / np.log(_MOST_DISTANCE / exact)
    far = np.minimum(exact + (growth * (half - exact)).astype(np.int64), half - 1)
    buckets: NDArray[np.int64] = np.where(distance < exact, distance, far) + half * (apart > 0)
    return buckets

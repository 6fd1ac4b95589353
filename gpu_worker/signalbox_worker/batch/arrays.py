"""Types of the arrays that a batch is made of."""

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
FloatArray = NDArray[np.float32]


def offsets(lengths: Int64Array) -> Int64Array:
    """Returns 0, 1, ..., lengths[0] - 1, 0, 1, ..., lengths[1] - 1, and so on."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - lengths, lengths)

"""Reads a part of a file into memory that goes back to the system when its array does.

A mapped file would stay resident beside the weights that are made of it, as long as it is mapped.
"""

from io import FileIO

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels import pages

_PART_BYTES = 8 << 20
"""Most of a part of a matrix; of these many are read, one after the other."""


def read_pages(file: FileIO, offset: int, num_bytes: int) -> NDArray[np.uint8] | None:
    """Returns [num_bytes] uint8, or None if the file ends early."""
    is_part = 0 < num_bytes <= _PART_BYTES
    data = pages.part(num_bytes) if is_part else pages.empty((num_bytes,), np.dtype(np.uint8))
    file.seek(offset)
    into = memoryview(data.data)
    while len(into):  # one read returns 2 GiB at most
        count = file.readinto(into)
        if not count:
            return None
        into = into[count:]
    return data

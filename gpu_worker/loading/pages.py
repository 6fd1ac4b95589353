"""Reads a part of a file into memory that goes back to the system when its tensor does.

A mapped file would stay resident beside the weights that are made of it, as long as it is mapped;
and malloc keeps what was freed for later, or between other things.
"""

import mmap
from io import FileIO

import torch
from torch import Tensor


def read_pages(file: FileIO, offset: int, num_bytes: int) -> Tensor | None:
    """Returns [num_bytes] uint8 in pages of its own, or None if the file ends early."""
    if num_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    data = mmap.mmap(-1, num_bytes)
    file.seek(offset)
    into = memoryview(data)
    while len(into):  # one read returns 2 GiB at most
        count = file.readinto(into)
        if not count:
            return None
        into = into[count:]
    return torch.frombuffer(data, dtype=torch.uint8)

"""Joins the matrices that a native program multiplies at once.

Files mix types: the K scheme of llama.cpp gives V more bits than Q and K, and a checkpoint may
have several schemes. Neighbours of one type, one order of columns and one rounding of what they are
multiplied with become one matrix; each type stays as it is stored.
"""

from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, groupby

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.pages import joined_rows
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.storage import Matrix, Storage, StoredMatrix, stored


def joined(parts: list[Matrix]) -> list[Matrix]:
    """Returns the parts as few matrices, in order."""
    return [_joined(list(run)) for _, run in groupby(parts, key=kind_of)]


def rows_of_heads(matrix: Matrix, num_heads: int, rows: range) -> list[Matrix]:
    """Returns some rows of each head's."""
    size, whole = matrix.shape[0] // num_heads, stored(matrix)
    whole = replace(whole, read=lru_cache(maxsize=1)(whole.read))
    return [whole.rows(head * size + rows.start, len(rows)) for head in range(num_heads)]


def transposed(matrix: Matrix) -> Matrix:
    """Returns a matrix of floats with its rows as columns."""
    of_rows = stored(matrix)
    value = np.dtype(f"u{of_rows.type.block_bytes}")

    def read() -> NDArray[np.uint8]:
        return np.ascontiguousarray(of_rows.blocks.view(value).T).view(np.uint8)

    return StoredMatrix(of_rows.type, of_rows.shape[::-1], read)


def kind_of(part: Matrix) -> tuple[Storage, bytes, Rounding | None]:
    """Returns what matrices that are multiplied at once have alike."""
    matrix = stored(part)
    order = b"" if matrix.order is None else matrix.order.tobytes()
    return matrix.type, order, matrix.rounding


def _joined(run: list[Matrix]) -> Matrix:
    first = stored(run[0])
    if len(run) == 1:
        return run[0]
    parts = [stored(part) for part in run]
    starts = [0, *accumulate(part.shape[0] for part in parts)]

    def read_rows(start: int, end: int) -> NDArray[np.uint8]:
        found = [
            part.read_rows(max(0, start - first), min(part.shape[0], end - first))
            for part, first in zip(parts, starts, strict=False)
            if part.read_rows and start < first + part.shape[0] and first < end
        ]
        return found[0] if len(found) == 1 else joined_rows(found)

    return replace(
        first,
        shape=(starts[-1], first.shape[1]),
        read=lambda: np.concatenate([part.blocks for part in parts]),
        read_rows=None if any(part.read_rows is None for part in parts) else read_rows,
    )

"""Joins the matrices that a native program multiplies at once.

Files mix types: the K scheme of llama.cpp gives V more bits than Q and K, and a checkpoint may
have several schemes. Neighbours of one type, one order of columns and one rounding of what they are
multiplied with become one matrix; each type stays as it is stored.
"""

from dataclasses import replace
from itertools import groupby

import numpy as np

from signalbox_kernels.rounding import Rounding
from signalbox_kernels.storage import Matrix, Storage, stored


def joined(parts: list[Matrix]) -> list[Matrix]:
    """Returns the parts as few matrices, in order."""
    return [_joined(list(run)) for _, run in groupby(parts, key=kind_of)]


def kind_of(part: Matrix) -> tuple[Storage, bytes, Rounding | None]:
    """Returns what matrices that are multiplied at once have alike."""
    matrix = stored(part)
    order = b"" if matrix.order is None else matrix.order.tobytes()
    return matrix.type, order, matrix.rounding


def _joined(run: list[Matrix]) -> Matrix:
    first = stored(run[0])
    if len(run) == 1:
        return run[0]
    shape = (sum(part.shape[0] for part in run), first.shape[1])
    blocks = [stored(part) for part in run]
    return replace(
        first, shape=shape, read=lambda: np.concatenate([part.blocks for part in blocks])
    )

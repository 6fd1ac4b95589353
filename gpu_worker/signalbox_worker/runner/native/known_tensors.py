"""Keeps what a compiler learned of a model's tensors, so that it need not read them again."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.storage import Matrix, Storage, StoredMatrix, stored
from signalbox_kernels.structs import Element

_MATRICES = "matrices"


class KnownTensors:
    """Vectors, and forms of matrices, by the names of their tensors."""

    def __init__(self, about: Mapping[str, AnyArray] | None = None) -> None:
        """Args: about: as `about` returns it. Raises ValueError or KeyError for what it is not."""
        self._arrays = dict(about or {})
        listed = self._arrays.pop(_MATRICES, None)
        self._matrices: dict[str, dict[str, Any]] = (
            {} if listed is None else json.loads(listed.tobytes())
        )

    def about(self) -> dict[str, AnyArray]:
        """Returns all of it as arrays."""
        listed = np.frombuffer(json.dumps(self._matrices).encode(), dtype=np.uint8)
        return self._arrays | {_MATRICES: listed}

    def matrix(self, name: str, read: Callable[[], Matrix]) -> Matrix:
        """Returns a matrix, which is opened only if it is not known, or its blocks are read."""
        known = self._matrices.get(name)
        if known is None:
            matrix = read()
            self._note(name, stored(matrix))
            return matrix
        return StoredMatrix(
            Storage(known["type"]),
            tuple(known["shape"]),
            lambda: stored(read()).blocks,
            self._arrays.get(f"order {name}"),
            _rounding(known["rounding"]),
        )

    def _note(self, name: str, matrix: StoredMatrix) -> None:
        rounding = None if matrix.rounding is None else asdict(matrix.rounding)
        about = {"type": matrix.type, "shape": matrix.shape, "rounding": rounding}
        self._matrices[name] = about
        if matrix.order is not None:
            self._arrays[f"order {name}"] = matrix.order

    def vector(self, name: str, read: Callable[[], AnyArray]) -> AnyArray:
        """Returns a vector as it is stored, which is read only if it is not known."""
        key = f"vector {name}"
        if key not in self._arrays:
            self._arrays[key] = read()
        return self._arrays[key]


def _rounding(fields: dict[str, Any] | None) -> Rounding | None:
    if fields is None:
        return None
    return Rounding(**(fields | {"code": Element(fields["code"])}))

"""A tensor of a checkpoint that is read when it is asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.storage import StoredMatrix
from signalbox_worker.files.quantised.form import QuantisedForm


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    Args:
        read: returns its values; those of quantised blocks as float32.
        read_rows: returns the values from a row to before another, on any thread, counted over all
            dimensions but the last; None if `read` has to make all of them.
    """

    shape: tuple[int, ...]
    read: Callable[[], AnyArray]
    blocks: StoredMatrix | None = None
    """The same as quantised blocks, if it is stored in blocks that native programs run."""
    parts: Mapping[str, "StoredTensor"] = field(default_factory=dict)
    """The tensors that a quantised checkpoint has instead of it, by the ends of their names; those
    of a tensor without a form are the matrices of experts, which a file has apart."""
    form: QuantisedForm | None = None
    """The form that gives them their meaning."""
    rounding: Rounding | None = None
    """Rounding of the activations that are multiplied with it."""
    dtype: np.dtype[Any] | None = None
    """Type of the values in a checkpoint's file; None for one that is not read."""
    read_rows: Callable[[int, int], AnyArray] | None = None

    def read_parts(self) -> dict[str, AnyArray]:
        return {end: part.read() for end, part in self.parts.items()}

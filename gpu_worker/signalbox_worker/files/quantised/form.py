"""Forms of a quantised matrix: the tensors that a checkpoint has instead of it.

A form knows these tensors and what they mean: `decode` gives the matrix in float32, which is how a
device without kernels for the form runs it, and the reference for those that have some. `unpack`
gives its whole numbers, which native programs and kernels take as they are, and `float_codes` its
codes of floats, which native programs do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from signalbox_kernels.floats import DTYPES, AnyArray
from signalbox_kernels.storage import Storage
from signalbox_worker.files.quantised.codes import ArrayLibrary, FloatCodes, IntegerCodes

WEIGHT = "weight"
"""End of the name of a matrix; of a quantised one perhaps its codes."""

Types = frozenset[np.dtype[Any]]
WORDS: Types = frozenset({np.dtype(np.int32)})
INDICES: Types = frozenset({np.dtype(np.int32), np.dtype(np.int64)})
BYTES: Types = frozenset({np.dtype(np.uint8)})
FLOATS: Types = frozenset({np.dtype(np.float32), *DTYPES.values()})

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of the tensors of one matrix, by the ends of their names."""
Read = Callable[[str], AnyArray]
"""Reads a tensor of the matrix by the end of its name."""
Tensors = Mapping[str, AnyArray]
"""Arrays of one matrix, by the ends of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedForm:
    """One way to hold a matrix in few bits. Forms are equal if kernels treat them alike."""

    name: str
    """Value of `--quantization` that keeps it."""
    marker: str
    """End of the name of a tensor that each quantised matrix has, and no other."""
    ends: Mapping[str, Types] = field(compare=False)
    """Ends of the names of all tensors that it may have, with the types of their values."""
    shape: Callable[[Shapes, Read], tuple[int, ...]] = field(compare=False)
    """Returns the rows and columns of the matrix; ValueError or KeyError for what is none. It may
    read small tensors."""
    decode: Callable[[Tensors], AnyArray] = field(compare=False)
    """Returns the matrix in float32, [out_features, in_features]."""
    bits: int = 8
    """Bits of a code."""
    group_size: int | None = None
    """Columns that share a scale; None if at least a row does."""
    unpack: Callable[[Mapping[str, Any], ArrayLibrary], IntegerCodes] | None = None
    """Returns the codes of a form of whole numbers."""
    storage: Storage | None = None
    """Type of the codes of floats; None for a form that has none."""
    float_codes: Callable[[Tensors], FloatCodes | None] | None = field(default=None, compare=False)
    """Returns them; None for a matrix whose values are others than those of the storage."""

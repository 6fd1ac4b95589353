"""Filters of draws: columns with a value for each row, from a worker's batch down to each kernel.

A new filter is a field here and in csrc/sampling/sampling_api.h, and its code in three places: C++
(csrc/sampling), Triton (triton/sampling) and signalbox_worker/sampling/torch_sampler.py, which
states what the filters mean. Imports no NumPy.
"""

from typing import Any, Generic, NamedTuple, TypeVar

Column = TypeVar("Column")


class Filters(NamedTuple, Generic[Column]):
    """Columns of some rows, each [num_rows], in the order of csrc/sampling/sampling_api.h."""

    top_p: Column
    """float32; 1 keeps everything."""
    min_p: Column
    """float32; 0 keeps everything."""
    typical_p: Column
    """float32; 1 keeps everything."""
    top_k: Column
    """int64 (Triton: int32); 0 keeps everything."""

    def take(self, rows: Any) -> "Filters[Any]":
        columns: tuple[Any, ...] = self
        return Filters._make([column[rows] for column in columns])

    @property
    def is_used(self) -> Any:
        """[num_rows], whether a row has a filter that is not neutral."""
        used = self[0] != NEUTRAL[0]
        for column, neutral in zip(self[1:], NEUTRAL[1:], strict=True):
            used = used | (column != neutral)
        return used


NEUTRAL = Filters(top_p=1.0, min_p=0.0, typical_p=1.0, top_k=0)
"""Values that keep everything."""
EXAMPLES = Filters(top_p=0.9, min_p=0.02, typical_p=0.8, top_k=20)
"""Values that leave something out, for trials of a kernel."""
DTYPES = Filters(top_p="float32", min_p="float32", typical_p="float32", top_k="int64")
"""NumPy's names of the columns' types."""

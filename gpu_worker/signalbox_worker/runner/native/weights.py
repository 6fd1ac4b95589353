"""The weights of a decoder as a native program packs them, each read when it is taken.

So a model is never in memory twice: a tensor is read from its file, packed, and given up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from signalbox_kernels.floats import DTYPES, AnyArray, to_dtype, to_float32
from signalbox_kernels.storage import (
    Matrix,
    Storage,
    StoredMatrix,
    quantise,
    read_by_rows,
    storage_of,
    stored,
)
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.checkpoints.coded_matrices import stored_codes
from signalbox_worker.files.checkpoints.quantization import Quantization
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import check_shape, matched
from signalbox_worker.runner.native.known_tensors import KnownTensors
from signalbox_worker.runner.native.matrices import joined
from signalbox_worker.runner.native.tensor_share import TensorShare, taken
from signalbox_worker.runner.native.weight_shapes import (
    EMBEDDING,
    EXPERTS,
    HEAD,
    TABLES,
    is_ignored,
    weight_shapes,
)


@dataclass(frozen=True, slots=True)
class WeightForm:
    """Form in which weights are packed."""

    dtype: np.dtype[Any]
    """Type of matrices that are floats, and that all vectors are rounded to."""
    quantization: Quantization | None = None
    rounds_activations: bool = True
    """Lets products round activations as the checkpoint prescribes."""


class Weights:
    """Tensors by their names in Hugging Face's checkpoints."""

    def __init__(
        self,
        stored: Mapping[str, StoredTensor],
        share: TensorShare,
        stage: StageLayers,
        form: WeightForm,
        *,
        known: KnownTensors | None = None,
        on_taken: Callable[[int, int], None] = lambda num_taken, num_total: None,
    ) -> None:
        """Reads nothing yet. Raises ModelError if tensors are missing, or not of this model, or
        have other shapes.

        Args:
            share: what this process has of them.
            stage: whose tensors are taken.
            known: what need not be read of them; what is read is added.
            on_taken: called after each tensor with the number taken so far and that of all.
        """
        config = share.whole
        self.share, self.stage, self.dtype = share, stage, form.dtype
        self._form, self._on_taken, self._known = form, on_taken, known or KnownTensors()
        self._shapes = weight_shapes(config)
        self._stored = matched(
            self._shapes,
            stored,
            ignores=lambda name: is_ignored(name, config),
            tied=(EMBEDDING, HEAD) if config.tie_embeddings and config.has_head else None,
        )
        for name, tensor in self._stored.items():
            self._check_shape(name, tensor.shape)
        self._num_wanted = len(share.names(stage))
        self._num_taken = 0

    def matrix(self, name: str) -> Matrix:
        """Returns this shard of a matrix in the form that it is packed in: blocks, or floats.

        Where `dtype` is float32, which computes with every type, it is as it is stored. Blocks that
        the part would cut are decoded.
        """
        return self._known.matrix(name, partial(self._matrix, name, self._take(name)))

    def _matrix(self, name: str, tensor: StoredTensor) -> Matrix:
        matrix = self._unrounded(name, tensor)
        if not self._form.rounds_activations or tensor.rounding is None:
            return matrix
        return replace(stored(matrix), rounding=tensor.rounding)

    def _unrounded(self, name: str, tensor: StoredTensor) -> Matrix:
        [matrix] = joined([self._run(name, tensor, rows) for rows in self.share.rows(name)])
        return matrix

    def _run(self, name: str, tensor: StoredTensor, rows: range) -> Matrix:
        columns = self.share.columns(name)
        form, as_stored = self._form.quantization, self.dtype == np.float32
        keeps_blocks = as_stored if form is None else form.keeps_blocks
        if keeps_blocks and tensor.blocks is not None and tensor.blocks.has_whole_blocks(columns):
            return tensor.blocks.rows(rows.start, len(rows)).columns(columns)
        codes = stored_codes(tensor) if form is not None and form.is_stored else None
        is_kept = codes is not None and codes.has_whole_blocks(columns)
        if codes is not None and is_kept and _may_be_ordered(name, tensor, codes):
            return codes.rows(rows.start, len(rows)).columns(columns)
        kind = None if form is None else form.block_type(is_table=name in TABLES)
        read_rows, dtype = tensor.read_rows, tensor.dtype
        if read_rows is None or dtype is None:
            return self._made(tensor.read()[rows.start : rows.stop], columns, kind)

        def made(start: int, end: int) -> Matrix:
            values = read_rows(rows.start + start, rows.start + end)
            return self._made(values, columns, kind)

        made_as = storage_of(self._dtype_of(dtype)) if kind is None else kind
        return read_by_rows(made_as, (len(rows), len(columns)), made)

    def _made(self, values: AnyArray, columns: range, kind: Storage | None) -> Matrix:
        """Makes a matrix of some columns of floats: blocks of a kind, or floats."""
        values = values[:, columns.start : columns.stop]
        if kind is not None:
            return quantise(values, kind)
        return to_dtype(values, self._dtype_of(values.dtype))

    def _dtype_of(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Returns the type of a matrix of floats that is stored in another one."""
        return dtype if self.dtype == np.float32 and dtype in DTYPES.values() else self.dtype

    def floats(self, name: str) -> Matrix:
        """Returns a matrix decoded to floats, which products read in parts."""
        tensor = self._take(name)

        def read() -> AnyArray:
            values = tensor.read()
            return to_dtype(values, self._dtype_of(values.dtype))

        return self._known.matrix(name, read)

    def vector(self, name: str, *, is_rounded: bool = True) -> AnyArray:
        """Returns this shard of a vector as float32.

        Args:
            is_rounded: rounds it to `dtype` before.
        """
        tensor, rows = self._take(name), self.share.rows(name)

        def read() -> AnyArray:
            return to_float32(taken(tensor.read(), rows))

        values = self._known.vector(name, read)
        return to_float32(to_dtype(values, self.dtype)) if is_rounded else values

    def norm(self, name: str) -> AnyArray:
        """Returns the weight of a norm as float32, with what the model adds to it; ones if it has
        none."""
        if name not in self._shapes:
            return np.ones(self._shapes[EMBEDDING][1], dtype=np.float32)
        return self.vector(name) + np.float32(self.share.whole.norm_offset)

    def vector_if_any(self, name: str) -> AnyArray | None:
        """Returns the same, or None if the model or this shard has nothing of this name."""
        return self.vector(name) if name in self._shapes and self.share.has(name) else None

    def _take(self, name: str) -> StoredTensor:
        self._num_taken += 1
        self._on_taken(self._num_taken, self._num_wanted)
        return self._stored[name]

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        expected = self._shapes[name]
        if name in TABLES and shape and shape[0] > expected[0]:  # rows of padding
            expected = (shape[0], *expected[1:])
        check_shape(name, shape, expected)


def _may_be_ordered(name: str, tensor: StoredTensor, codes: StoredMatrix) -> bool:
    """Says whether a matrix may be packed with its columns in the order of its codes.

    Tables have no rows to reorder, experts share theirs, and groups of activations are runs of
    neighbouring columns.
    """
    by_groups = tensor.rounding is not None and tensor.rounding.group_size is not None
    has_own_rows = name not in TABLES and f".{EXPERTS}." not in name
    return codes.order is None or (has_own_rows and not by_groups)

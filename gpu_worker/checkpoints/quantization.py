"""Chooses the format of matrices by `--quantization`, and converts each as it is loaded.

Only a native program computes with quantised matrices. "int8" and "int4" are made at load, weights
only, in groups of 32 along the sum: Q8_0 and Q4_1 by ggml's names. The table that ids look up and
the head keep 8 bits under "int4", as llama.cpp's files do.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gpu_worker.checkpoints.weight_sizes import WeightSizes
from gpu_worker.config import ModelConfig, ModelError
from signalbox_kernels.floats import AnyArray
from signalbox_kernels.quantised import BlockType, Matrix, quantise
from signalbox_kernels.tensors import as_tensor

logger = logging.getLogger(__name__)

_TABLES = ("embed_tokens.weight", "lm_head.weight")


class WeightSource(Protocol):
    """A source of tensors."""

    def weights(self) -> Iterator[tuple[str, AnyArray]]:
        """Yields every tensor under its Hugging Face name."""
        ...


@runtime_checkable
class StoresBlocks(Protocol):
    """A source whose file may hold quantised blocks."""

    @property
    def sizes(self) -> WeightSizes:
        """Counts over all tensors of the file."""
        ...

    def matrices(self) -> Iterator[tuple[str, Matrix]]:
        """Yields every tensor under its Hugging Face name; blocks as they are, where they run."""
        ...


@dataclass(frozen=True, slots=True)
class Quantization:
    """One of the ways to hold matrices in blocks.

    Args:
        name: "gguf", "int8" or "int4".
        layers, tables: what floats become; None leaves them, since the file's own types serve.
    """

    name: str
    layers: BlockType | None = None
    tables: BlockType | None = None

    def weights(self, source: WeightSource) -> Iterator[tuple[str, Matrix]]:
        """Yields a source's tensors, matrices in blocks."""
        if self.layers is None and isinstance(source, StoresBlocks):
            yield from source.matrices()
            return
        for name, array in source.weights():
            tensor = as_tensor(array)
            is_matrix = tensor.dim() == 2
            yield name, self.hold(tensor, is_table=name.endswith(_TABLES)) if is_matrix else tensor

    def hold(self, matrix: Matrix, *, is_table: bool) -> Matrix:
        """Returns what a matrix is held in; blocks stay."""
        kind = self.tables if is_table else self.layers
        return matrix if kind is None or not isinstance(matrix, Tensor) else quantise(matrix, kind)


def describe_form(source: WeightSource, dtype: torch.dtype, chosen: Quantization | None) -> str:
    """Says what a file's quantised weights are held in, and what the other form takes; else ""."""
    if not isinstance(source, StoresBlocks) or not source.sizes.has_blocks:
        return ""
    kind, num_bytes = source.sizes.block_type, source.sizes.stored_bytes
    floats = str(dtype).removeprefix("torch.")
    as_floats = source.sizes.bytes_in(floats)
    if chosen is None:
        return (
            f"weights: {kind} of the file expanded to {floats}, {as_floats >> 20} MiB;"
            f" --quantization gguf, where it runs natively, takes {num_bytes >> 20} MiB"
        )
    if chosen.name != "gguf":
        return f"weights: {kind} of the file made {chosen.name} at load"
    return (
        f"weights: {kind} of the file as it is, {num_bytes >> 20} MiB;"
        f" --quantization none takes {as_floats >> 20} MiB in {floats}"
    )


_OF_NAME = {
    "gguf": Quantization("gguf"),
    "int8": Quantization("int8", BlockType.Q8_0, BlockType.Q8_0),
    "int4": Quantization("int4", BlockType.Q4_1, BlockType.Q8_0),
}


def choose_quantization(
    config: ModelConfig, source: WeightSource, why_not: str | None
) -> Quantization | None:
    """Resolves the flag; None holds every matrix in the model's dtype.

    Args:
        why_not: what keeps this model from running natively, if anything does.

    Raises ModelError for what was asked for and cannot be.
    """
    name = config.quantization
    has_blocks = isinstance(source, StoresBlocks) and source.sizes.has_blocks
    if name == "gguf" and not has_blocks:
        raise ModelError(
            "quantization is 'gguf', but the model has no quantised blocks that can be run as they "
            "are; use 'int8', 'int4' or 'none'"
        )
    if name == "auto":
        if not has_blocks or config.dtype != "auto":
            return None  # a dtype is asked for: of the weights, too
        if why_not is not None:
            logger.info("the file's quantised weights become floats: natively, %s", why_not)
            return None
        name = "gguf"
    if name == "none":
        return None
    if why_not is not None:
        raise ModelError(
            f"quantization is {name!r}, which takes a native program, but {why_not}; use 'none'"
        )
    return _OF_NAME[name]

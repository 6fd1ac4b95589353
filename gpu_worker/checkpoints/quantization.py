"""Chooses the format of matrices by `--quantization`, and converts each as it is loaded.

Only a native program computes with quantised matrices. "auto" keeps the blocks of a file where one
runs. "int8" and "int4" are made at load, weights only, in groups of 32 along the sum: Q8_0 and Q4_1
by ggml's names. The table that ids look up and the head keep 8 bits under "int4", as llama.cpp's
files do.
"""

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

_TABLES = ("embed_tokens.weight", "lm_head.weight")


class WeightSource(Protocol):
    """A source of tensors."""

    @property
    def sizes(self) -> WeightSizes | None:
        """Counts over all tensors; None for a source without a checkpoint."""
        ...

    def weights(self) -> Iterator[tuple[str, AnyArray]]:
        """Yields every tensor under its Hugging Face name."""
        ...


@runtime_checkable
class StoresBlocks(Protocol):
    """A source whose file may hold quantised blocks."""

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
    has_blocks = source.sizes is not None and source.sizes.has_blocks
    if name == "auto":
        as_stored = config.keeps_blocks and has_blocks and why_not is None
        return _OF_NAME["gguf"] if as_stored else None
    if name == "none":
        return None
    if name == "gguf" and not has_blocks:
        raise ModelError(
            "quantization is 'gguf', but the model has no quantised blocks that can be run as they "
            "are; use 'auto', 'int8', 'int4' or 'none'"
        )
    if why_not is not None:
        raise ModelError(
            f"quantization is {name!r}, which takes a native program, but {why_not}; use 'auto'"
        )
    return _OF_NAME[name]


def describe_form(
    sizes: WeightSizes | None,
    dtype: torch.dtype,
    chosen: Quantization | None,
    why_not: str | None,
) -> str:
    """Returns one line: the form of the weights, its size, and what the other choice takes.

    Args:
        sizes: None for random weights.
        chosen: what `choose_quantization` returned.
        why_not: what keeps the model from running natively, if anything does.
    """
    floats = str(dtype).removeprefix("torch.")
    if sizes is None:
        reason = "" if why_not is None else f"; the native implementation is not used: {why_not}"
        return f"weights: random, {chosen.name if chosen else floats}{reason}"
    stored = f"{sizes.block_type} of the file"
    if chosen is not None:
        form = f"{stored} as it is" if chosen.name == "gguf" else f"{chosen.name}, made at load"
        other = f"--quantization none takes {_mib(sizes, floats)} in {floats}"
        return f"weights: {form}, {_mib(sizes, chosen.name)}; {other}"
    form = f"{stored} expanded to {floats}" if sizes.has_blocks else floats
    smaller = "gguf" if sizes.has_blocks else "int8"
    other = f"--quantization {smaller} takes {_mib(sizes, smaller)}"
    if why_not is not None:
        other += f" in the native implementation, but {why_not}"
    return f"weights: {form}, {_mib(sizes, floats)}; {other}"


def _mib(sizes: WeightSizes, form: str) -> str:
    return f"{sizes.bytes_in(form) / (1 << 20):,.0f} MiB"

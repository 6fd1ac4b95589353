"""Chooses the format of matrices by `--quantization`.

Only a native program computes with quantised matrices. "auto" keeps the blocks of a file where one
runs. "int8" and "int4" are made at load, weights only, in groups of 32 along the sum: Q8_0 and Q4_1
by ggml's names. The table that ids look up and the head keep 8 bits under "int4", as llama.cpp's
files do.
"""

from dataclasses import dataclass
from typing import Protocol

from gpu_worker.checkpoints.weight_sizes import WeightSizes
from gpu_worker.config import ModelConfig, ModelError
from signalbox_kernels.storage import Storage


class WeightSource(Protocol):
    """A source of tensors."""

    @property
    def sizes(self) -> WeightSizes | None:
        """Counts over all tensors; None for a source without a checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class Quantization:
    """One of the ways to hold matrices in blocks.

    Args:
        name: "gguf", "int8" or "int4".
        layers, tables: what floats become; None leaves them, since the file's own types serve.
    """

    name: str
    layers: Storage | None = None
    tables: Storage | None = None

    @property
    def keeps_blocks(self) -> bool:
        """True if blocks of a file stay as they are."""
        return self.layers is None

    def block_type(self, *, is_table: bool) -> Storage | None:
        """Returns what a matrix of floats becomes; None leaves it."""
        return self.tables if is_table else self.layers


_OF_NAME = {
    "gguf": Quantization("gguf"),
    "int8": Quantization("int8", Storage.Q8_0, Storage.Q8_0),
    "int4": Quantization("int4", Storage.Q4_1, Storage.Q8_0),
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
        return _OF_NAME["gguf"] if has_blocks and why_not is None else None
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
    dtype: str,
    chosen: Quantization | None,
    why_not: str | None,
) -> str:
    """Returns one line: the form of the weights, its size, and what the other choice takes.

    Args:
        sizes: None for random weights.
        chosen: what `choose_quantization` returned.
        why_not: what keeps the model from running natively, if anything does.
    """
    in_float32 = why_not is None and dtype == "float32"  # which computes with every type
    expanded = "gguf" if in_float32 else dtype
    if sizes is None:
        reason = "" if why_not is None else f"; the native implementation is not used: {why_not}"
        return f"weights: random, {chosen.name if chosen else dtype}{reason}"
    stored = f"{sizes.block_type} of the file"
    if chosen is not None:
        form = f"{stored} as it is" if chosen.keeps_blocks else f"{chosen.name}, made at load"
        other = f"--quantization none takes {_mib(sizes, expanded)} in {dtype}"
        if chosen.keeps_blocks and in_float32:  # the same weights
            other = "--quantization none multiplies them in float32"
        return f"weights: {form}, {_mib(sizes, chosen.name)}; {other}"
    if in_float32:
        form = f"{stored if sizes.has_blocks else 'types of the files'}, computed in float32"
    else:
        form = f"{stored} expanded to {dtype}" if sizes.has_blocks else dtype
    smaller = "gguf" if sizes.has_blocks else "int8"
    other = f"--quantization {smaller} takes {_mib(sizes, smaller)}"
    if why_not is not None:
        other += f" in the native implementation, but {why_not}"
    return f"weights: {form}, {_mib(sizes, expanded)}; {other}"


def _mib(sizes: WeightSizes, form: str) -> str:
    return f"{sizes.bytes_in(form) / (1 << 20):,.0f} MiB"

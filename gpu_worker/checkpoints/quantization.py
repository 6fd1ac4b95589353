"""Chooses the format of matrices by `--quantization`.

A native program computes with blocks of 32: those of a file under "auto", or "int8" and "int4",
which are made at load, weights only: Q8_0 and Q4_1 by ggml's names. The table that ids look up and
the head keep 8 bits under "int4", as llama.cpp's files do.

PyTorch computes with the quantised form of a checkpoint, or with FP8 made at load, on CUDA devices
that can multiply it. Elsewhere "auto" decodes the form to the model's dtype.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpu_worker.checkpoints.quantised_forms import FP8, QuantisedForm, quantised_form
from gpu_worker.checkpoints.weight_sizes import WeightSizes
from gpu_worker.config import ModelConfig, ModelError
from signalbox_kernels.storage import Storage


class WeightSource(Protocol):
    """A source of tensors."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's config.json."""
        ...

    @property
    def sizes(self) -> WeightSizes | None:
        """Counts over all tensors; None for a source without a checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class Quantization:
    """One of the ways to hold matrices in few bits.

    Args:
        name: value of `--quantization`.
        layers, tables: what floats become in a native program; None leaves them, since the file's
            own types serve.
        form: what PyTorch's layers hold.
        is_stored: True if the checkpoint has this form, False if it is made at load.
    """

    name: str
    layers: Storage | None = None
    tables: Storage | None = None
    form: QuantisedForm | None = None
    is_stored: bool = False

    @property
    def keeps_blocks(self) -> bool:
        """True if blocks of a file stay as they are."""
        return self.name == "gguf"

    def block_type(self, *, is_table: bool) -> Storage | None:
        """Returns what a matrix of floats becomes; None leaves it."""
        return self.tables if is_table else self.layers


_NATIVE = {
    "gguf": Quantization("gguf"),
    "int8": Quantization("int8", Storage.Q8_0, Storage.Q8_0),
    "int4": Quantization("int4", Storage.Q4_1, Storage.Q8_0),
}
_ON_CUDA = {"awq": (8, 0), "fp8": (8, 9), "gptq": (8, 0)}
"""Forms that PyTorch's layers hold, and the least compute capability that multiplies them."""
_INT4 = ("awq", "gptq")
_MADE_AT_LOAD = {"fp8": FP8}


def choose_quantization(
    config: ModelConfig,
    source: WeightSource,
    why_not: str | None,
    capability: tuple[int, int] | None = None,
    *,
    has_kernels: bool = True,
) -> Quantization | None:
    """Resolves the flag; None holds every matrix in the model's dtype.

    Args:
        why_not: what keeps this model from running natively, if anything does.
        capability: compute capability of the CUDA device; None stands for a CPU.
        has_kernels: False if the device has none of our kernels for products. Plain PyTorch decodes
            the whole matrix in each product.

    Raises ModelError for what was asked for and cannot be.
    """
    name, stored = config.quantization, quantised_form(source.config)
    if stored is None and name in _INT4 and config.load_format == "dummy":
        stored = quantised_form({"quantization_config": {"quant_method": name}})
    has_blocks = source.sizes is not None and source.sizes.has_blocks
    if name == "none":
        return None
    if name == "auto":
        if stored is not None and _why_not_on(capability, stored.name, has_kernels) is None:
            return Quantization(stored.name, form=stored, is_stored=True)
        return _NATIVE["gguf"] if has_blocks and why_not is None else None
    if name in _ON_CUDA:
        return _on_cuda(name, stored, capability, has_kernels)
    if name == "gguf" and not has_blocks:
        raise ModelError(
            "quantization is 'gguf', but the model has no quantised blocks that can be run as they "
            "are; use 'auto', 'int8', 'int4' or 'none'"
        )
    if why_not is not None:
        raise ModelError(
            f"quantization is {name!r}, which takes a native program, but {why_not}; use 'auto'"
        )
    return _NATIVE[name]


def _on_cuda(
    name: str,
    stored: QuantisedForm | None,
    capability: tuple[int, int] | None,
    has_kernels: bool,
) -> Quantization:
    reason = _why_not_on(capability, name, has_kernels)
    if reason is not None:
        instead = "'auto', which decodes the weights" if stored is not None else "'auto'"
        on_cpu = " or 'int8'" if capability is None and stored is None else ""
        raise ModelError(f"quantization is {name!r}, but {reason}; use {instead}{on_cpu}")
    if stored is not None and stored.name != name:
        raise ModelError(
            f"quantization is {name!r}, but the checkpoint is in {stored.name}; use 'auto'"
        )
    form = stored or _MADE_AT_LOAD.get(name)
    if form is None:
        raise ModelError(
            f"quantization is {name!r}, which is not made at load, and the checkpoint is not "
            "quantised; use 'auto' or 'fp8'"
        )
    return Quantization(name, form=form, is_stored=stored is not None)


def _why_not_on(capability: tuple[int, int] | None, name: str, has_kernels: bool) -> str | None:
    """Says why a device does not multiply a form."""
    least = _ON_CUDA[name]
    needed = f"it takes a CUDA device of compute capability {least[0]}.{least[1]}"
    if capability is None:
        return f"{needed}, and this is a CPU"
    if capability < least:
        return f"{needed}, and this one has {capability[0]}.{capability[1]}"
    if not has_kernels:
        return (
            "its kernels are Triton's, which come with the attention backends triton and flash_attn"
        )
    return None


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
    if sizes is None:
        reason = "" if why_not is None else f"; the native implementation is not used: {why_not}"
        return f"weights: random, {chosen.name if chosen else dtype}{reason}"
    in_float32 = why_not is None and dtype == "float32"  # which computes with every type
    if sizes.quantised_form or (chosen is not None and chosen.form is not None):
        return _describe_quantised(sizes, dtype, chosen)
    expanded = "gguf" if in_float32 else dtype
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


def _describe_quantised(sizes: WeightSizes, dtype: str, chosen: Quantization | None) -> str:
    stored = f"{sizes.quantised_form} of the checkpoint"
    expanded = f"{_mib(sizes, dtype)} in {dtype}"
    if chosen is None:
        return f"weights: {stored}, decoded to {dtype}, {_mib(sizes, dtype)}"
    form = stored if chosen.is_stored else f"{chosen.name}, made at load"
    return f"weights: {form}, {_mib(sizes, chosen.name)}; --quantization none takes {expanded}"


def _mib(sizes: WeightSizes, form: str) -> str:
    return f"{sizes.bytes_in(form) / (1 << 20):,.0f} MiB"

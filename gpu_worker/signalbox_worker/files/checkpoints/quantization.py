"""Chooses the format of matrices by `--quantization`.

A native program computes with blocks of 32: those of a file under "auto", or "int8" and "int4",
which are made at load, weights only: Q8_0 and Q4_1 by ggml's names. The table that ids look up and
the head keep 8 bits under "int4", as llama.cpp's files do.

The quantised form of a checkpoint is kept where it can be multiplied: whole numbers and codes of
floats in groups by native programs, 4 bits and FP8 by PyTorch's layers on CUDA devices. Elsewhere
"auto" decodes it to the model's dtype. PyTorch's layers also hold FP8 made at load.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from signalbox_kernels.storage import Storage
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.checkpoints.coded_matrices import keeps_codes
from signalbox_worker.files.checkpoints.weight_sizes import OWN_TYPES, WeightSizes
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.configuration import FP8, FP8_BLOCKS, quantised_checkpoint
from signalbox_worker.files.quantised.form import QuantisedForm


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
        form: what PyTorch's layers hold; the commonest of a checkpoint that has several.
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
_CHECKPOINTS = ("awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq", "modelopt", "mxfp4")
"""Forms that a checkpoint may have."""
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
    name, stored = config.quantization, quantised_checkpoint(source.config)
    is_dummy = config.load_format == "dummy"
    if is_dummy and why_not is None:
        stored = None  # native programs make up floats
    elif is_dummy and stored is None and name in _INT4:
        stored = quantised_checkpoint({"quantization_config": {"quant_method": name}})
    has_blocks = source.sizes is not None and source.sizes.has_blocks
    if name == "none":
        return None
    if name == "auto":
        if stored is not None and _why_not_stored(stored, why_not, capability, has_kernels) is None:
            return Quantization(stored.name, form=stored.forms[0], is_stored=True)
        return _NATIVE["gguf"] if has_blocks and why_not is None else None
    if name in _CHECKPOINTS:
        return _of_checkpoint(name, stored, why_not, capability, has_kernels)
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


def _of_checkpoint(
    name: str,
    stored: QuantisedCheckpoint | None,
    why_not: str | None,
    capability: tuple[int, int] | None,
    has_kernels: bool,
) -> Quantization:
    if stored is not None and name not in (stored.name, *stored.other_names):
        raise ModelError(
            f"quantization is {name!r}, but the checkpoint is in {stored.name}; use 'auto'"
        )
    form = _MADE_AT_LOAD.get(name)
    if stored is not None:
        reason = _why_not_stored(stored, why_not, capability, has_kernels)
        form = stored.forms[0]
    elif form is not None:
        reason = _why_not_on(capability, form, has_kernels)
    else:
        made = "int8" if capability is None else "fp8"
        raise ModelError(
            f"quantization is {name!r}, which is not made at load, and the checkpoint is not "
            f"quantised; use 'auto' or {made!r}"
        )
    if reason is not None:
        instead = "'auto', which decodes the weights" if stored is not None else "'auto'"
        on_cpu = " or 'int8'" if capability is None and stored is None else ""
        raise ModelError(f"quantization is {name!r}, but {reason}; use {instead}{on_cpu}")
    kept = name if stored is None else stored.name
    return Quantization(kept, form=form, is_stored=stored is not None)


def _why_not_stored(
    stored: QuantisedCheckpoint,
    why_not: str | None,
    capability: tuple[int, int] | None,
    has_kernels: bool,
) -> str | None:
    """Says why no matrix of a checkpoint is held as it is."""
    if why_not is None:
        return None if keeps_codes(stored) else "native programs have no such weights"
    reasons = [_why_not_on(capability, form, has_kernels) for form in stored.forms]
    return None if None in reasons else reasons[0]


def _why_not_on(
    capability: tuple[int, int] | None, form: QuantisedForm, has_kernels: bool
) -> str | None:
    """Says why a device does not multiply a form with PyTorch's layers."""
    least = (8, 9) if form in (FP8, FP8_BLOCKS) else (8, 0)
    if form not in (FP8, FP8_BLOCKS) and not (form.unpack and form.bits == 4):
        return f"no kernel multiplies {form.name} in {form.bits} bits"
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


def native_form(sizes: WeightSizes, dtype: str, chosen: Quantization | None) -> str:
    """Returns the form that a native program has weights in, as `WeightSizes.bytes_in` names it."""
    if chosen is not None:
        return chosen.name
    return dtype if sizes.quantised_form or dtype != "float32" else OWN_TYPES


def describe_form(
    sizes: WeightSizes | None,
    dtype: str,
    chosen: Quantization | None,
    why_not: str | None,
    *,
    rounds_activations: bool = True,
    has_forms: bool = True,
) -> str:
    """Returns one line: the form of the weights, its size, and what the other choice takes.

    Args:
        sizes: None for random weights.
        chosen: what `choose_quantization` returned.
        why_not: what keeps the model from running natively, if anything does.
        rounds_activations: False leaves activations in floats, whatever the checkpoint prescribes.
        has_forms: False of a native model that holds its matrices in floats alone.
    """
    if sizes is None:
        reason = "" if why_not is None else f"; the native implementation is not used: {why_not}"
        return f"weights: random, {chosen.name if chosen else dtype}{reason}"
    in_float32 = why_not is None and dtype == "float32"  # which computes with every type
    in_float32 &= has_forms or not sizes.has_blocks
    if sizes.quantised_form or (chosen is not None and chosen.form is not None):
        return _describe_quantised(sizes, dtype, chosen, rounds_activations)
    expanded = "gguf" if in_float32 else dtype
    stored = f"{sizes.block_type} of the file"
    if chosen is not None:
        kept = f", its values held as {sizes.held_type}" if sizes.held_type else " as it is"
        form = f"{stored}{kept}" if chosen.keeps_blocks else f"{chosen.name}, made at load"
        other = f"--quantization none takes {_mib(sizes, expanded)} in {dtype}"
        if chosen.keeps_blocks and in_float32:  # the same weights
            other = "--quantization none multiplies them in float32"
        return f"weights: {form}, {_mib(sizes, chosen.name)}; {other}"
    if in_float32:
        form = f"{stored if sizes.has_blocks else 'types of the files'}, computed in float32"
    else:
        form = f"{stored} expanded to {dtype}" if sizes.has_blocks else dtype
    if not has_forms:
        return f"weights: {form}, {_mib(sizes, expanded)}"
    smaller = "gguf" if sizes.has_blocks else "int8"
    other = f"--quantization {smaller} takes {_mib(sizes, smaller)}"
    if why_not is not None:
        other += f" in the native implementation, but {why_not}"
    return f"weights: {form}, {_mib(sizes, expanded)}; {other}"


def _describe_quantised(
    sizes: WeightSizes, dtype: str, chosen: Quantization | None, rounds_activations: bool
) -> str:
    stored = f"{sizes.quantised_form} of the checkpoint"
    expanded = f"{_mib(sizes, dtype)} in {dtype}"
    note = _describe_activations(sizes, rounds_activations)
    if chosen is None:
        return f"weights: {stored}, decoded to {dtype}, {_mib(sizes, dtype)}{note}"
    form = stored if chosen.is_stored else f"{chosen.name}, made at load"
    takes = f"{form}, {_mib(sizes, chosen.name)}"
    return f"weights: {takes}{note}; --quantization none takes {expanded}"


def _describe_activations(sizes: WeightSizes, rounds_activations: bool) -> str:
    """Returns the part of the line on activations; empty if the checkpoint prescribes nothing."""
    if not sizes.activations and not sizes.leaves_activations:
        return ""
    if not sizes.activations or not rounds_activations:
        return "; activations are not rounded as it prescribes"
    note = f"; activations are rounded to {sizes.activations} as it prescribes"
    return f"{note}, but not before all matrices" if sizes.leaves_activations else note


def _mib(sizes: WeightSizes, form: str) -> str:
    return f"{sizes.bytes_in(form) / (1 << 20):,.0f} MiB"

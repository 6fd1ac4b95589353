"""Finds the forms of a checkpoint's matrices by `quantization_config` in its config.json."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from signalbox_kernels.structs import Element
from signalbox_worker.config import ModelError
from signalbox_worker.files.quantised.activations import ActivationScheme
from signalbox_worker.files.quantised.awq_gptq import awq_checkpoint, gptq_checkpoint
from signalbox_worker.files.quantised.bitsandbytes import bitsandbytes_checkpoint
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.compressed_tensors import NAME as COMPRESSED_TENSORS
from signalbox_worker.files.quantised.compressed_tensors import compressed_tensors_checkpoint
from signalbox_worker.files.quantised.fields import (
    Described,
    expect,
    first,
    not_served,
    refuse_others,
)
from signalbox_worker.files.quantised.form import QuantisedForm
from signalbox_worker.files.quantised.modelopt import modelopt_checkpoint
from signalbox_worker.files.quantised.mxfp4 import gpt_oss_checkpoint
from signalbox_worker.files.quantised.scaled import BLOCK, BLOCK_SCALE, ROW, scaled_form

FP8 = scaled_form("fp8", ROW)
"""E4M3 with a scale for a matrix or for each row."""
FP8_BLOCKS = scaled_form("fp8", (BLOCK, BLOCK), scale=BLOCK_SCALE)
"""E4M3 with a scale for each block of 128 x 128."""


QUANTIZATION, _OLD_KEY = "quantization_config", "compression_config"


def with_quantization(
    config: Mapping[str, Any], of_file: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Returns a config.json whose `quantization_config` is the one that counts, if there is one.

    Compressed-tensors wrote it under another key, or one level deeper; `{}` says nothing.

    Args:
        of_file: fields of a file of its own, which the first versions of other libraries wrote.
    """
    rest = {name: value for name, value in config.items() if name not in (QUANTIZATION, _OLD_KEY)}
    found = (config.get(QUANTIZATION), config.get(_OLD_KEY), of_file)
    described: Any = next((one for one in found if one is not None and one != {}), None)
    if described is None:
        return rest
    if isinstance(described, Mapping):
        described = dict(described)
        if described == config.get(_OLD_KEY):
            described.setdefault("quant_method", COMPRESSED_TENSORS)
        if isinstance(inner := described.get(QUANTIZATION), Mapping):
            del described[QUANTIZATION]
            described |= inner
    return {**rest, QUANTIZATION: described}


def quantised_checkpoint(config: Mapping[str, Any]) -> QuantisedCheckpoint | None:
    """Returns what a config.json says; None if its weights are floats.

    Raises ModelError for a form that is not known, and for a field that is not read.
    """
    described = config.get(QUANTIZATION)
    if described is None:
        return None
    if not isinstance(described, Mapping):
        raise ModelError(
            f"quantization_config is {str(described)[:40]!r}, no set of fields; fetch it again"
        )
    method = described.get("quant_method")
    reader = _READERS.get(str(method))
    if reader is None:
        raise ModelError(
            f"the checkpoint is quantised by {str(method)[:40]!r}, which is not supported; use a "
            f"model without quantization, or of {', '.join(sorted(_READERS))}"
        )
    return reader(described)


def _fp8(described: Described) -> QuantisedCheckpoint:
    """Scales of a whole matrix, of its rows, or of blocks."""
    read = ("activation_scheme", "weight_block_size", "modules_to_not_convert", "ignored_layers")
    refuse_others(
        described, "fp8", (*read, "fmt", "expert_dtype", "kv_cache_scheme", "ignore", "scale_fmt")
    )
    expect(described, "fp8", "e4m3", "fmt")
    expect(described, "fp8", "fp8", "expert_dtype")
    block = described.get("weight_block_size")
    if block not in (None, [BLOCK, BLOCK]):
        raise ModelError(
            f"the checkpoint is in FP8 by blocks of {str(block)[:40]}; use one by blocks of "
            f"{BLOCK} x {BLOCK}, or with scales of rows or matrices"
        )
    scheme = first(described, "dynamic", "activation_scheme")
    if scheme not in ("dynamic", "static"):
        raise not_served("fp8", f"activation_scheme {str(scheme)[:40]!r}", "'dynamic' or 'static'")
    rows, blocks = (_of_form(form, is_static=scheme == "static") for form in (FP8, FP8_BLOCKS))
    if "weight_block_size" in described:
        return rows if block is None else blocks
    # Left out, it is a block of 128 x 128 to transformers and none to vLLM: the tensors tell.
    return replace(rows, forms=(FP8, FP8_BLOCKS), by_marker={BLOCK_SCALE: blocks})


def _fbgemm_fp8(described: Described) -> QuantisedCheckpoint:
    """Scales of rows. Activations stay in floats: no program cuts large ones before it rounds, as
    the form prescribes."""
    refuse_others(described, "fbgemm_fp8", ("activation_scale_ub", "modules_to_not_convert"))
    return QuantisedCheckpoint("fp8", (FP8,), lambda module: FP8, leaves_activations=True)


def _of_form(form: QuantisedForm, *, is_static: bool) -> QuantisedCheckpoint:
    activations = ActivationScheme(
        code=Element.FP8_E4M3,
        group_size=None if is_static or form == FP8 else BLOCK,
        is_static=is_static,
    )
    return QuantisedCheckpoint(
        "fp8", (form,), lambda module: form, lambda module: activations, (activations,)
    )


_READERS: dict[str, Callable[[Described], QuantisedCheckpoint | None]] = {
    "awq": awq_checkpoint,
    "bitsandbytes": bitsandbytes_checkpoint,
    COMPRESSED_TENSORS: compressed_tensors_checkpoint,
    "fbgemm_fp8": _fbgemm_fp8,
    "fp8": _fp8,
    "gptq": gptq_checkpoint,
    "modelopt": modelopt_checkpoint,
    "modelopt_fp4": modelopt_checkpoint,
    "mxfp4": gpt_oss_checkpoint,
}

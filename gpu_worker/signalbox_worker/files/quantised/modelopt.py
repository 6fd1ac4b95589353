"""The configuration of ModelOpt: one form for all modules whose tensors are in it.

config.json has it as `quantization_config`, hf_quant_config.json in a form of its own. `ignore` and
`exclude_modules` name modules that stay as they are, which their tensors tell.
"""

from collections.abc import Mapping
from typing import Any

from signalbox_kernels.structs import Element
from signalbox_worker.files.quantised.activations import ActivationScheme
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.fields import Described, arguments, not_served, refuse_others
from signalbox_worker.files.quantised.nvfp4 import GROUP, nvfp4_form
from signalbox_worker.files.quantised.scaled import ROW, scaled_form

NAME = "modelopt"
_READ = ("quant_algo", "config_groups", "kv_cache_scheme", "group_size")
_HOW_MADE = ("producer", "ignore", "exclude_modules", "quant_library")
_SCHEMES: Mapping[str, tuple[int, ActivationScheme | None]] = {
    "FP8": (8, ActivationScheme(code=Element.FP8_E4M3, is_static=True)),
    "FP8_PER_CHANNEL_PER_TOKEN": (8, ActivationScheme(code=Element.FP8_E4M3)),
    "NVFP4": (4, None),
    "W4A16_NVFP4": (4, None),
}
"""Bits of the weights of an algorithm, which are floats, and how activations are rounded."""
_IN_4_BITS = "NVFP4"
"""The algorithm that prescribes activations in 4 bits, which no program computes."""


def of_hf_quant_config(content: Mapping[str, Any]) -> Described:
    """Returns what hf_quant_config.json says, as config.json would say it."""
    found = content.get("quantization")
    described = dict(found) if isinstance(found, Mapping) else {}
    of_kv = described.pop("kv_cache_quant_algo", None)
    if of_kv is not None:
        described["kv_cache_scheme"] = "static" if of_kv == "FP8" else str(of_kv)
    return {"quant_method": NAME, **described}


def modelopt_checkpoint(described: Described) -> QuantisedCheckpoint | None:
    """Returns None if weights are floats. Raises ModelError for an algorithm that is not served."""
    refuse_others(described, NAME, (*_READ, *_HOW_MADE))
    if described.get("quant_algo") is None:
        return None
    algorithm = str(described.get("quant_algo"))
    if algorithm not in _SCHEMES:
        raise not_served(NAME, f"quant_algo {algorithm[:40]!r}", ", ".join(_SCHEMES))
    bits, activations = _SCHEMES[algorithm]
    _check_groups(described, algorithm, bits)
    form = nvfp4_form(NAME) if bits == 4 else scaled_form("fp8", ROW)
    schemes = () if activations is None else (activations,)
    return QuantisedCheckpoint(
        form.name,
        (form,),
        lambda module: form,
        lambda module: activations,
        schemes,
        leaves_activations=algorithm == _IN_4_BITS,
        other_names=() if form.name == NAME else (NAME,),
    )


def _check_groups(described: Described, algorithm: str, bits: int) -> None:
    """Raises ModelError for weights that are others than those of the algorithm."""
    groups = described.get("config_groups") or {}
    sizes = [described.get("group_size")] if bits == 4 else []
    for group in groups.values() if isinstance(groups, Mapping) else [groups]:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        found = arguments(weights) if isinstance(weights, Mapping) else {}
        if (found.get("type"), found.get("num_bits")) != ("float", bits):
            raise not_served(NAME, f"weights {str(weights)[:60]} of {algorithm}", f"{bits} bits")
        sizes += [found.get("group_size")] if bits == 4 else []
    if other := [size for size in sizes if size not in (None, GROUP)]:
        raise not_served(NAME, f"groups of {str(other[0])[:40]}", f"groups of {GROUP}")

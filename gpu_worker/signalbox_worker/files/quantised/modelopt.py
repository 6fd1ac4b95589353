"""The configuration of ModelOpt: one form for all modules whose tensors are in it, or one by name.

config.json has it as `quantization_config`, hf_quant_config.json in a form of its own. `ignore` and
`exclude_modules` name modules that stay as they are, which their tensors tell. MIXED_PRECISION has
`quantized_layers`, which give an algorithm to modules, or to all modules within one.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from signalbox_kernels.structs import Element
from signalbox_worker.files.quantised.activations import ActivationScheme
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.fields import Described, arguments, not_served, refuse_others
from signalbox_worker.files.quantised.form import QuantisedForm
from signalbox_worker.files.quantised.nvfp4 import GROUP, nvfp4_form
from signalbox_worker.files.quantised.scaled import BLOCK, ROW, scaled_form

NAME = "modelopt"
_READ = ("quant_algo", "config_groups", "kv_cache_scheme", "group_size", "quantized_layers")
_HOW_MADE = ("producer", "ignore", "exclude_modules", "quant_library")
_MIXED = "MIXED_PRECISION"
TEXT_PREFIXES = ("language_model.model.", "model.language_model.")
"""Beginnings of names of a text part's modules, of which files and configurations have either."""


class _Algorithm(NamedTuple):
    """Form of the matrices, whose codes are floats, and rounding of the activations."""

    name: str
    form: QuantisedForm
    activations: ActivationScheme | None = None


_ALGORITHMS: Mapping[str, _Algorithm] = {
    one.name: one
    for one in (
        _Algorithm(
            "FP8", scaled_form("fp8", ROW), ActivationScheme(code=Element.FP8_E4M3, is_static=True)
        ),
        _Algorithm(
            "FP8_PER_CHANNEL_PER_TOKEN",
            scaled_form("fp8", ROW),
            ActivationScheme(code=Element.FP8_E4M3),
        ),
        _Algorithm("FP8_PB_WO", scaled_form("fp8", (BLOCK, BLOCK))),
        _Algorithm("NVFP4", nvfp4_form(NAME)),
        _Algorithm("W4A16_NVFP4", nvfp4_form(NAME)),
    )
}
_IN_4_BITS = "NVFP4"
"""The algorithm that prescribes activations in 4 bits, which no program computes."""
AlgorithmOf = Callable[[str], _Algorithm | None]


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
    if str(described["quant_algo"]).upper() == _MIXED:
        layers = _layers(described.get("quantized_layers"))
        return _checkpoint([*layers.values()], lambda module: _within(layers, module))
    algorithm = _algorithm(described)
    _check_groups(described.get("config_groups"), algorithm)
    return _checkpoint([algorithm], lambda module: algorithm)


def _checkpoint(algorithms: list[_Algorithm], algorithm_of: AlgorithmOf) -> QuantisedCheckpoint:
    forms = tuple(form for form, _ in Counter(one.form for one in algorithms).most_common())
    schemes = dict.fromkeys(one.activations for one in algorithms if one.activations is not None)
    is_fp8 = all(form.name == "fp8" for form in forms)
    return QuantisedCheckpoint(
        "fp8" if is_fp8 else NAME,
        forms,
        lambda module: None if (one := algorithm_of(module)) is None else one.form,
        lambda module: None if (one := algorithm_of(module)) is None else one.activations,
        tuple(schemes),
        leaves_activations=any(one.name == _IN_4_BITS for one in algorithms),
        other_names=(NAME,) if is_fp8 else (),
    )


def _layers(layers: Any) -> Mapping[str, _Algorithm]:
    """Returns the algorithm of each name. Raises ModelError if one is not served."""
    if not layers or not isinstance(layers, Mapping):
        raise not_served(
            NAME, f"{_MIXED} and quantized_layers {str(layers)[:40]!r}", "algorithms by module"
        )
    found = {}
    for module, fields in layers.items():
        if not isinstance(fields, Mapping):
            raise not_served(NAME, f"{str(fields)[:40]!r} for {module[:80]}", "a quant_algo")
        refuse_others(fields, NAME, ("quant_algo", "group_size"))
        found[module] = _algorithm(fields)
    return found


def _within(layers: Mapping[str, _Algorithm], module: str) -> _Algorithm | None:
    """Returns the algorithm of a module, or that of the nearest one which it is a part of."""
    names = {module}
    for prefix in TEXT_PREFIXES:
        if module.startswith(prefix):
            names |= {other + module.removeprefix(prefix) for other in TEXT_PREFIXES}
    while names != {""}:
        if found := next((layers[name] for name in names if name in layers), None):
            return found
        names = {name.rpartition(".")[0] for name in names}
    return None


def _algorithm(fields: Described) -> _Algorithm:
    """Reads `quant_algo`, which some versions write in lower case, and the size of groups."""
    name = str(fields.get("quant_algo"))
    algorithm = _ALGORITHMS.get(name.upper())
    if algorithm is None:
        raise not_served(NAME, f"quant_algo {name[:40]!r}", ", ".join(_ALGORITHMS))
    _check_size(fields.get("group_size"), algorithm)
    return algorithm


def _check_groups(groups: Any, algorithm: _Algorithm) -> None:
    """Raises ModelError for weights that are others than those of the algorithm."""
    groups, bits = groups or {}, algorithm.form.bits
    for group in groups.values() if isinstance(groups, Mapping) else [groups]:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        found = arguments(weights) if isinstance(weights, Mapping) else {}
        if (found.get("type"), found.get("num_bits")) != ("float", bits):
            raise not_served(
                NAME, f"weights {str(weights)[:60]} of {algorithm.name}", f"{bits} bits"
            )
        _check_size(found.get("group_size"), algorithm)


def _check_size(size: Any, algorithm: _Algorithm) -> None:
    if algorithm.form.bits == 4 and size not in (None, 0, GROUP):
        raise not_served(NAME, f"groups of {str(size)[:40]}", f"groups of {GROUP}")

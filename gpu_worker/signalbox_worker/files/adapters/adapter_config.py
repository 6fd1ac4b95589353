"""Reads adapter_config.json of PEFT, and refuses each field that would be without its effect.

The names of modules are those of Hugging Face's models; PEFT 0.21 chooses the same of them.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from signalbox_worker.config import ModelError
from signalbox_worker.files.adapters.expressions import (
    Expression,
    Match,
    TakesTooMuch,
    first_matches,
)
from signalbox_worker.files.checkpoints.json_file import read_json

T = TypeVar("T")

MAX_BYTES = 1 << 20
MAX_BYTES_PER_MODULE = 512
"""Bytes of an adapter's description: of any, and for each module that its model has."""
ALL_LINEAR = "all-linear"
_REMARKS = {
    "peft_type": "only LORA is served",
    "use_dora": "DoRA is not served; merge the adapter into its model, or train it without",
    "bias": "biases are not served; train the adapter with bias='none'",
    "lora_bias": "biases are not served; train the adapter without",
    "modules_to_save": "whole modules are not served; merge the adapter into its model",
    "trainable_token_indices": "tokens that were trained are not served; merge the adapter",
    "target_parameters": "parameters of experts are not served; merge the adapter",
    "layer_replication": "replicated layers are not served; merge the adapter into its model",
    "init_lora_weights": "it has changed the base model's weights; save the adapter with"
    " path_initial_model_for_weight_conversion",
}
"""Texts for the refusal of a field."""
_KEPT_BASE = (True, False, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the base model as it is."""
_READ = frozenset(
    (
        "r",
        "lora_alpha",
        "use_rslora",
        "target_modules",
        "exclude_modules",
        "rank_pattern",
        "alpha_pattern",
        "layers_to_transform",
        "layers_pattern",
        "peft_type",
        "bias",
        "init_lora_weights",
    )
)
_OF_TRAINING = frozenset(
    (
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "fan_in_fan_out",  # how the base model stores a matrix, which PEFT resolves itself
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",  # without use_qalora
        "revision",
        "runtime_config",
        "task_type",
    )
)
"""Fields without an effect on what an adapter computes."""
_NEUTRAL: tuple[object, ...] = (None, False, "", [], {}, 0)
DEFAULTS: Mapping[str, Any] = {"r": 8, "lora_alpha": 8, "use_rslora": False}
"""Values that PEFT takes for fields that are left out; a test compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """The sizes r, scales and modules of an adapter of one model, by its adapter_config.json."""

    max_rank: int
    base_model: str
    """Name of the model that it was trained on, for messages."""
    _scales_by_root: bool
    """True if a product is divided by the root of r (use_rslora)."""
    _targets: frozenset[str]
    _ranks: Mapping[str, int]
    _alphas: Mapping[str, float]

    def targets(self, module: str) -> bool:
        """Returns whether the adapter changes a linear module of the layers."""
        return module in self._targets

    def rank_of(self, module: str) -> int:
        return self._ranks[module]

    def scale(self, module: str) -> float:
        """Returns the factor of the product of B and A."""
        r = self.rank_of(module)
        return self._alphas[module] / (math.sqrt(r) if self._scales_by_root else r)


def _end_of(names: Collection[str], module: str) -> bool:
    """Returns whether a module's name is one of `names`, or ends in one after a point."""
    parts = module.split(".")
    return any(".".join(parts[i:]) in names for i in range(len(parts)))


def _of_end(name: str) -> Expression:
    """Returns an expression of the modules whose names end so."""
    return Expression(rf"(.*\.)?({name})$")


def read_adapter_config(path: Path, modules: Collection[str] = ()) -> AdapterConfig:
    """Raises ModelError with the field that cannot be served.

    Args:
        modules: names of the modules that adapters of the model may change.
    """
    config = read_json(path, max_bytes=max_bytes(modules))
    _check_served(config, path)
    try:
        return _config(config, modules)
    except TakesTooMuch:
        raise ModelError(
            f"a regular expression in {path}, or all of them, takes too long to be matched with the"
            " names of modules; give their names as a list"
        ) from None
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError, re.error) as error:
        raise ModelError(f"{path} is not sound ({error}); save the adapter again") from None


def max_bytes(modules: Collection[str]) -> int:
    """Returns the most bytes of what describes an adapter, beside its weights."""
    return MAX_BYTES + MAX_BYTES_PER_MODULE * len(modules)


def _check_served(config: Mapping[str, Any], path: Path) -> None:
    for name, value in config.items():
        match name:
            case "peft_type":
                is_served = value == "LORA"
            case "bias":
                is_served = value == "none"
            case "init_lora_weights":
                is_served = value in _KEPT_BASE
            case _:
                is_served = name in _READ or name in _OF_TRAINING or value in _NEUTRAL
        if not is_served:
            remark = _REMARKS.get(name, "it is not served, and would change what it computes")
            raise ModelError(f"{path} says {name} = {_shown(value)}: {remark}")
    if "peft_type" not in config:
        raise ModelError(f"{path} has no peft_type; give the folder of an adapter of PEFT")


def _config(config: Mapping[str, Any], modules: Collection[str]) -> AdapterConfig:
    config = {**DEFAULTS, **config}
    r, alpha = _rank(config["r"]), _number(config["lora_alpha"])
    sizes = _pattern(config.get("rank_pattern"), _rank)
    alphas = _pattern(config.get("alpha_pattern"), _number)
    targets = _Targets(
        _modules(config["target_modules"]),
        excluded=_modules(config.get("exclude_modules") or []),
        layers=_layers(config.get("layers_to_transform")),
    )
    layers_pattern = _listed(config.get("layers_pattern") or [])
    found = first_matches(
        {
            "r": [*map(_of_end, sizes)],
            "alpha": [*map(_of_end, alphas)],
            "targeted": _whole(targets.targeted),
            "excluded": _whole(targets.excluded),
            "layer": _of_layers(layers_pattern) if targets.layers else (),
        },
        modules,
    )
    return AdapterConfig(
        max_rank=max([r, *sizes.values()]),
        base_model=str(config.get("base_model_name_or_path") or ""),
        _scales_by_root=_flag(config["use_rslora"]),
        _targets=frozenset(module for module in modules if targets.has(module, found)),
        _ranks=_of_modules(sizes, found["r"], r, modules),
        _alphas=_of_modules(alphas, found["alpha"], alpha, modules),
    )


@dataclass(frozen=True, slots=True)
class _Targets:
    """Names of the modules that an adapter changes: a list of their ends, or one expression."""

    targeted: str | frozenset[str]
    excluded: str | frozenset[str]
    layers: frozenset[int]
    """Layers whose modules are changed; all if it is empty."""

    def __post_init__(self) -> None:
        if not self.targeted:
            raise ValueError("target_modules names no module")
        if self.layers and isinstance(self.targeted, str):
            raise ValueError("layers_to_transform goes with a list of target_modules")

    def has(self, module: str, found: Mapping[str, Mapping[str, Match]]) -> bool:
        """Args: found: matches of the expressions "targeted", "excluded" and "layer"."""
        targeted, of_layer = self.targeted, found["layer"]
        if _is_named(self.excluded, module, found["excluded"]):
            return False
        if isinstance(targeted, str) and targeted.lower() == ALL_LINEAR:
            return True
        if not _is_named(targeted, module, found["targeted"]):
            return False
        if not self.layers or module in targeted:
            return True
        return module in of_layer and int(of_layer[module].last_group) in self.layers


def _is_named(names: str | frozenset[str], module: str, found: Mapping[str, Match]) -> bool:
    return module in found if isinstance(names, str) else _end_of(names, module)


def _of_modules(
    pattern: Mapping[str, T], found: Mapping[str, Match], default: T, modules: Iterable[str]
) -> dict[str, T]:
    values = [*pattern.values()]
    return {one: values[found[one].number] if one in found else default for one in modules}


def _whole(names: str | Collection[str]) -> list[Expression]:
    """Returns the expression of names that are given as one."""
    is_expression = isinstance(names, str) and names.lower() != ALL_LINEAR
    return [Expression(str(names), is_whole=True)] if is_expression else []


def _of_layers(layers_pattern: Collection[str]) -> list[Expression]:
    """Returns expressions of whose groups the last one is the number of a layer."""
    patterns = [rf"(?:^|.*?\.){one}" for one in layers_pattern] or [r".*?\.[^.]*"]
    return [Expression(rf"{pattern}\.(\d+)\.") for pattern in patterns]


def _rank(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"r is {_shown(value)}, must be a whole number of at least 1")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"an alpha is {_shown(value)}, must be a number")
    return float(value)


def _pattern(value: Any, checked: Callable[[Any], T]) -> dict[str, T]:
    if not isinstance(value or {}, dict):
        raise ValueError(f"{_shown(value)} is no object of patterns")
    return {name: checked(each) for name, each in (value or {}).items()}


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"use_rslora is {_shown(value)}, must be true or false")
    return value


def _layers(value: Any) -> frozenset[int]:
    layers = [value] if type(value) is int else value or []
    if not isinstance(layers, list) or any(type(layer) is not int for layer in layers):
        raise ValueError(f"layers_to_transform is {_shown(value)}, must be numbers of layers")
    return frozenset(layers)


def _modules(value: Any) -> str | frozenset[str]:
    return value if isinstance(value, str) else frozenset(_listed(value))


def _listed(value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{_shown(value)} is no list of names")
    return names


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:60]

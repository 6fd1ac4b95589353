"""Reads adapter_config.json of PEFT, and refuses each field that would be without its effect.

The names of modules are those of Hugging Face's models; PEFT 0.21 chooses the same of them.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gpu_worker.adapters.expressions import Expression
from gpu_worker.checkpoints.json_file import read_json
from gpu_worker.config import ModelError

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """The fields of adapter_config.json that decide what an adapter computes; see PEFT."""

    r: int
    lora_alpha: float
    use_rslora: bool = False
    target_modules: str | tuple[str, ...]
    exclude_modules: str | tuple[str, ...] = ()
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    layers_to_transform: tuple[int, ...] = ()
    layers_pattern: tuple[str, ...] = ()
    base_model: str = ""
    """Name of the model that it was trained on, for messages."""

    def targets(self, module: str) -> bool:
        """Returns whether the adapter changes a linear module of the layers."""
        if _names(self.exclude_modules, module):
            return False
        if isinstance(self.target_modules, str):
            is_all = self.target_modules.lower() == ALL_LINEAR
            return is_all or _names(self.target_modules, module)
        if module in self.target_modules:
            return True
        if not _names(self.target_modules, module):
            return False
        return not self.layers_to_transform or self._layer(module) in self.layers_to_transform

    def _layer(self, module: str) -> int | None:
        for pattern in self._of_layers:
            if found := re.match(pattern, module):
                return int(found[found.re.groups])
        return None

    @property
    def _of_layers(self) -> list[str]:
        """Expressions of whose groups the last one is the number of a layer."""
        patterns = [rf"(?:^|.*?\.){one}" for one in self.layers_pattern] or [r".*?\.[^.]*"]
        return [rf"{pattern}\.(\d+)\." for pattern in patterns]

    def rank(self, module: str) -> int:
        return _of_pattern(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """Returns the factor of the product of B and A."""
        rank = self.rank(module)
        alpha = _of_pattern(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    @property
    def max_rank(self) -> int:
        return max([self.r, *self.rank_pattern.values()])

    @property
    def expressions(self) -> list[Expression]:
        """All regular expressions that are matched with names of modules."""
        whole = [one for one in (self.target_modules, self.exclude_modules) if isinstance(one, str)]
        ends = map(_of_end, (*self.rank_pattern, *self.alpha_pattern))
        of_layers = self._of_layers if self.layers_to_transform else ()
        return [
            *(Expression(one, is_whole=True) for one in whole if one.lower() != ALL_LINEAR),
            *(Expression(one) for one in (*ends, *of_layers)),
        ]


def _names(names: str | Iterable[str], module: str) -> bool:
    """Returns whether a regular expression matches a module, or its name ends in one of `names`."""
    if isinstance(names, str):
        return bool(names) and re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _of_pattern(pattern: Mapping[str, T], module: str, default: T) -> T:
    found = (value for name, value in pattern.items() if re.match(_of_end(name), module))
    return next(found, default)


def _of_end(name: str) -> str:
    """Returns an expression of the modules whose names end so."""
    return rf"(.*\.)?({name})$"


def read_adapter_config(path: Path) -> AdapterConfig:
    """Raises ModelError with the field that cannot be served."""
    config = read_json(path)
    _check_served(config, path)
    try:
        return _config(config)
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError, re.error) as error:
        raise ModelError(f"{path} is not sound ({error}); save the adapter again") from None


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


def _config(config: Mapping[str, Any]) -> AdapterConfig:
    checked = AdapterConfig(
        r=_rank(config["r"]),
        lora_alpha=_number(config["lora_alpha"]),
        use_rslora=_flag(config.get("use_rslora", False)),
        target_modules=_modules(config["target_modules"]),
        exclude_modules=_modules(config.get("exclude_modules") or []),
        rank_pattern=_pattern(config.get("rank_pattern"), _rank),
        alpha_pattern=_pattern(config.get("alpha_pattern"), _number),
        layers_to_transform=_layers(config.get("layers_to_transform")),
        layers_pattern=_listed(config.get("layers_pattern") or []),
        base_model=str(config.get("base_model_name_or_path") or ""),
    )
    for expression in checked.expressions:
        re.compile(expression.pattern)
    if not checked.target_modules:
        raise ValueError("target_modules names no module")
    if checked.layers_to_transform and isinstance(checked.target_modules, str):
        raise ValueError("layers_to_transform goes with a list of target_modules")
    return checked


def _rank(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"a rank is {_shown(value)}, must be a whole number of at least 1")
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


def _layers(value: Any) -> tuple[int, ...]:
    layers = [value] if type(value) is int else value or []
    if not isinstance(layers, list) or any(type(layer) is not int for layer in layers):
        raise ValueError(f"layers_to_transform is {_shown(value)}, must be numbers of layers")
    return tuple(layers)


def _modules(value: Any) -> str | tuple[str, ...]:
    return value if isinstance(value, str) else _listed(value)


def _listed(value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{_shown(value)} is no list of names")
    return names


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:60]

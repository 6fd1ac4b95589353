"""Reads the rotation of a config.json: rope_parameters, or its older forms, as transformers does.

`rope_scaling` counts instead of `rope_parameters` where both are there, as users write it beside.
Its base is then that of `rope_parameters` unless it says one, or the top level does (transformers
takes the class's).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.models.family_config import FamilyConfig, UnsoundConfig, counted
from signalbox_worker.models.rope import (
    DynamicScaling,
    FrequencyDivisors,
    Llama3Scaling,
    LongRopeScaling,
    QueryScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)

Parameters = Mapping[str, Any]
MAX_POSITION = 1 << 24
"""More than any model has; the angles of each position are in memory, 512 bytes at a head size of
64."""
_ORIGINAL = "original_max_position_embeddings"
_PART, _BETA = "partial_rotary_factor", "llama_4_scaling_beta"
_OF_ALIKE = (_ORIGINAL, _PART, "rope_theta")
"""Names at the top level that say nothing where kinds of layers rotate in several ways."""
_WITH_ORIGINAL = ("llama3", "longrope", "yarn")


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """The parameters of a rotation, complete."""

    kind: str
    theta: float
    parameters: Parameters
    max_position: int
    """Window in tokens by max_position_embeddings."""

    @property
    def served_length(self) -> int:
        """Longest window in tokens; linear, dynamic and YaRN scaling make it longer, as in vLLM."""
        length = self.max_position
        if self.kind in ("linear", "dynamic"):
            length = int(self._number("factor") * self.max_position)
        if self.kind == "yarn":
            length = int(self._factor * self._original)
        return counted(
            {"max_position_embeddings": length}, "max_position_embeddings", most=MAX_POSITION
        )

    @property
    def score_factor(self) -> float:
        """Factor of scores in attention to latents, which YaRN's window changes there."""
        scale = 0.0 if self.kind == "default" else self._number("mscale_all_dim", 0.0)
        return _magnitude(self._number("factor"), scale) ** 2 if scale else 1.0

    def config(self, head_size: int) -> RopeConfig:
        """Returns the frequencies' configuration. Raises ModelError for what is not served."""
        part = self._number(_PART, 1.0)
        size = int(head_size * part)
        if size % 2 or not 0 < size <= head_size:
            raise ModelError(
                f"{_PART} {part} is not supported, since it rotates {size} of {head_size} elements "
                "of each head; use a model that rotates an even number of them"
            )
        num_rotated = None if size == head_size else size
        rope = RopeConfig(theta=self.theta, scaling=self._scaling(size), num_rotated=num_rotated)
        if not rope.is_finite(head_size, self.served_length):
            raise UnsoundConfig(
                f"config.json has rope scaling {self.kind!r} by which angles are no numbers"
            )
        return rope

    def query_scaling(self) -> QueryScaling | None:
        """Returns how queries are scaled, if the parameters say it."""
        if self.parameters.get(_BETA) is None:
            return None
        beta = self._number(_BETA)
        original = counted(self.parameters, _ORIGINAL, most=MAX_POSITION)
        return QueryScaling(beta=beta, original_max_position=original)

    def _scaling(self, size: int) -> RopeScaling | None:
        match self.kind:
            case "default":
                return None
            case "linear":
                return FrequencyDivisors((self._number("factor"),) * (size // 2))
            case "dynamic":
                return DynamicScaling(factor=self._number("factor"), original=self.max_position)
            case "divisors":  # written by our GGUF loader
                return FrequencyDivisors(self._divisors("divisors", size))
            case "llama3":
                return Llama3Scaling(
                    factor=self._number("factor"),
                    low_freq_factor=self._number("low_freq_factor"),
                    high_freq_factor=self._number("high_freq_factor"),
                    original_max_position=self._original,
                )
            case "longrope":
                return self._longrope(size)
            case "yarn":
                return self._yarn()
        raise ModelError(
            f"rope scaling {self.kind!r} is not supported; use a model with default, linear, "
            "dynamic, llama3, longrope or yarn"
        )

    def _longrope(self, size: int) -> LongRopeScaling:
        stretch = math.log(self._factor) / math.log(self._original) if self._factor > 1 else 0.0
        return LongRopeScaling(
            short=self._divisors("short_factor", size),
            long=self._divisors("long_factor", size),
            original_max_position=self._original,
            attention_factor=self._number("attention_factor", math.sqrt(1 + stretch)),
        )

    def _divisors(self, name: str, size: int) -> tuple[float, ...]:
        given = self.parameters.get(name)
        factors = given if isinstance(given, list | tuple) else ()
        are_numbers = all(type(one) in (int, float) and one > 0 for one in factors)
        if not are_numbers or len(factors) != size // 2:
            raise UnsoundConfig(
                f"config.json has rope scaling {self.kind!r} without a {name} for each of "
                f"{size // 2} frequencies"
            )
        return tuple(map(float, factors))

    def _yarn(self) -> YarnScaling:
        factor = self._factor
        scales = [self._number(name, 0.0) for name in ("mscale", "mscale_all_dim")]
        by_factor = _magnitude(factor, 1.0)
        if all(scales):
            by_factor = _magnitude(factor, scales[0]) / _magnitude(factor, scales[1])
        return YarnScaling(
            factor=factor,
            original_max_position=self._original,
            beta_fast=self._number("beta_fast", 32.0) or 32.0,
            beta_slow=self._number("beta_slow", 1.0) or 1.0,
            attention_factor=self._number("attention_factor", by_factor),
            truncates=bool(self.parameters.get("truncate", True)),
        )

    @property
    def _factor(self) -> float:
        """Factor of YaRN and LongRoPE, whose windows say it too."""
        if self.kind == "yarn" and "factor" not in self.parameters:
            raise UnsoundConfig("config.json has YaRN without 'factor'; it is incomplete")
        return self._number("factor", self.max_position / self._original)

    @property
    def _original(self) -> int:
        return int(self._number(_ORIGINAL))

    def _number(self, name: str, default: float | None = None) -> float:
        """Returns a parameter that is a number, `default` if it is null or missing."""
        value = self.parameters.get(name)
        value = default if value is None else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not 0 <= value < math.inf:
            raise UnsoundConfig(
                f"config.json says {name} = {str(value)[:40]} of rope scaling {self.kind!r}"
            )
        return float(value)


def stretched_length(parameters: Parameters, max_position: int) -> int:
    """Returns the longest window of complete parameters whose frequencies do not depend on it."""
    kind = str(parameters.get("rope_type"))
    kind = kind if kind in ("linear", "yarn") else "default"
    return RopeParameters(kind, 1.0, parameters, max_position).served_length


def _magnitude(factor: float, scale: float) -> float:
    """Returns YaRN's factor of queries and keys."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_rotation(
    config: Mapping[str, Any], *, rotates_part: bool = False, **names: str
) -> RopeParameters:
    """Reads the rotation of a model whose layers all rotate alike.

    Args:
        rotates_part: whether the family may rotate a part of each head alone.
        names: of kinds of scaling that the family has other names for.
    """
    own = FamilyConfig.of(config)
    before, scaling = parameters_of(own, "rope_parameters"), parameters_of(own, "rope_scaling")
    parameters = dict(scaling or before)
    if not own.says("rope_parameters"):  # the class's own are for files without any
        before = parameters
    if any(isinstance(one, Mapping) for one in parameters.values()):
        raise ModelError("rotations of several kinds of layers are not supported for this family")
    theta = own["rope_theta"]
    if own.says("rope_parameters") and not own.says("rope_theta"):
        theta = before.get("rope_theta", theta)
    parameters.setdefault("rope_theta", theta)
    parameters.setdefault(_PART, own[_PART])
    if not rotates_part:
        _check_whole(parameters)
    if (original := own[_ORIGINAL]) is not None:
        parameters[_ORIGINAL] = original
    return _complete(own, parameters, names)


def read_layer_rotations(
    config: Mapping[str, Any], thetas: Mapping[str, str], scaled: Sequence[str]
) -> dict[str, RopeParameters]:
    """Reads the rotations of each kind of layer.

    Args:
        thetas: names at the top level of the kinds' bases.
        scaled: kinds that `rope_scaling` is for.
    """
    own = FamilyConfig.of(config)
    nested, scaling = parameters_of(own, "rope_parameters"), parameters_of(own, "rope_scaling")
    rotations = {}
    for kind, name in thetas.items():
        found = nested.get(kind)
        if not isinstance(found, Mapping | None):
            raise UnsoundConfig(f"config.json says rope_parameters.{kind} = {str(found)[:40]}")
        parameters = {"rope_type": "default"} if found is None else dict(found)
        if kind in scaled:
            parameters |= scaling
        if "type" in scaling and parameters.get("rope_type", scaling["type"]) != scaling["type"]:
            raise UnsoundConfig("config.json says rope_scaling.type; its name is rope_type")
        theta = own[name]
        parameters.setdefault("rope_theta", theta)
        _check_whole(parameters)
        rotations[kind] = _complete(own, parameters, {})
    own.disregard(*_OF_ALIKE)
    return rotations


def parameters_of(config: FamilyConfig, name: str) -> Parameters:
    """Returns a mapping of a config.json, empty if it is null. Raises UnsoundConfig for what is
    none."""
    value = config[name]
    if not isinstance(value, Mapping | None):
        raise UnsoundConfig(f"config.json says {name} = {str(value)[:40]}")
    return value or {}


def _check_whole(parameters: Parameters) -> None:
    if (part := parameters.get(_PART)) not in (None, 1.0):
        raise ModelError(f"{_PART} {part} is not supported; use a model with 1.0")


def _complete(
    config: FamilyConfig, parameters: dict[str, Any], names: Mapping[str, str]
) -> RopeParameters:
    kind = str(parameters.get("rope_type", parameters.get("type", "default")))
    kind, theta = names.get(kind, kind), parameters["rope_theta"]
    if type(theta) not in (int, float) or not 0 < theta < math.inf:
        raise UnsoundConfig(f"config.json says rope_theta = {str(theta)[:40]}")
    max_position = counted(config, "max_position_embeddings", most=MAX_POSITION)
    if kind in _WITH_ORIGINAL:
        parameters.setdefault(_ORIGINAL, max_position)
    return RopeParameters(kind, float(theta), parameters, max_position)

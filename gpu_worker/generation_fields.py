"""Reads the fields of a generation_config.json that are served.

They are those that vLLM reads too.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from contract.sampling_defaults import DefaultParams

_UINT32_MAX = (1 << 32) - 1
_MAX_SHOWN_CHARS = 80
"""Characters of a value that an error message shows."""

_NUMBERS: Mapping[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 2.0, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, True),
    "repetition_penalty": (0.0, 10.0, False),
}
"""Least and greatest value, and whether the least itself is allowed; as in inference.proto."""
_INTEGERS: Mapping[str, tuple[str, int]] = {
    "top_k": ("top_k", 0),
    "max_new_tokens": ("max_tokens", 1),
}
"""Our name for each integer of generation_config.json, and its least value."""
_ALL_TOKENS = -1
"""A top_k that keeps all tokens, for vLLM and transformers."""

_NO_TOKEN = -1
_NAMES = (*_NUMBERS, *_INTEGERS, "eos_token_id")
"""Fields that are read from a generation_config.json."""


def default_params(config: Mapping[str, Any]) -> DefaultParams:
    """Reads the fields of a generation_config.json; fields that it lacks get no default.

    Raises ValueError that names the field, its value and the range.
    """
    values: dict[str, Any] = {}
    for name, (low, high, is_low_allowed) in _NUMBERS.items():
        if (value := config.get(name)) is not None:
            is_in_range = _is_number(value) and low <= value <= high
            if not is_in_range or (value == low and not is_low_allowed):
                bounds = f"{'[' if is_low_allowed else '('}{low:g}, {high:g}]"
                raise ValueError(f"{name} is {_shown(value)}; it must be in {bounds}")
            values[name] = float(value)
    for name, (own_name, least) in _INTEGERS.items():
        if (value := config.get(name)) is not None:
            if name == "top_k" and value == _ALL_TOKENS:
                value = 0
            is_whole = _is_number(value) and value == int(value)
            if not is_whole or not least <= value <= _UINT32_MAX:
                raise ValueError(
                    f"{name} is {_shown(value)}; it must be an integer of at least {least}"
                )
            values[own_name] = int(value)
    return DefaultParams(**values)


def end_token_ids(config: Mapping[str, Any]) -> set[int]:
    """Returns the end tokens of a generation_config.json or a config.json, where -1 is none.

    Raises ValueError for invalid token ids.
    """
    value = config.get("eos_token_id")
    token_ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in token_ids:
        is_whole = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not is_whole or not _NO_TOKEN <= token_id <= _UINT32_MAX:
            raise ValueError(
                f"eos_token_id is {_shown(value)}; it must be a token id or a list of them"
            )
    return {*token_ids} - {_NO_TOKEN}


def check_override(config: object) -> None:
    """Checks an override of generation_config.json's fields. Raises ValueError."""
    if not isinstance(config, Mapping):
        raise ValueError('it must be a JSON object, such as {"temperature": 0.6, "top_p": 0.9}')
    if unknown := config.keys() - set(_NAMES):
        raise ValueError(f"it has {min(unknown)!r}; it takes {', '.join(_NAMES)}")
    default_params(config)
    end_token_ids(config)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."


def _is_number(value: object) -> bool:
    if isinstance(value, int):  # of any length
        return not isinstance(value, bool)
    return isinstance(value, float) and math.isfinite(value)


def _json(value: Any) -> Any:
    """Returns the value as JSON text; a YAML file may give a mapping."""
    return json.dumps(value) if isinstance(value, Mapping) else value


def _checked_override(text: str) -> str:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error})") from None
    check_override(config)
    return text


GenerationOverride = Annotated[str, BeforeValidator(_json), AfterValidator(_checked_override)]
"""A generation_config.json as text."""

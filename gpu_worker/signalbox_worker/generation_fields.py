"""Reads the fields of a generation_config.json that are served.

They are those that vLLM reads too.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from signalbox_contract.sampling_defaults import DefaultParams
from signalbox_contract.sampling_params import API_LIMITS
from signalbox_rpc.settings.quantities import from_json, json_text

_UINT32_MAX = (1 << 32) - 1
_MAX_SHOWN_CHARS = 80
"""Characters of a value that an error message shows."""

_OWN_NAMES = {
    {"max_tokens": "max_new_tokens"}.get(one.name, one.name): one.name
    for one in fields(DefaultParams)
}
"""Our name for each number of a generation_config.json that is read."""
_ALL_TOKENS = -1
"""A top_k that keeps all tokens, for vLLM and transformers."""

_NO_TOKEN = -1
_NAMES = (*_OWN_NAMES, "eos_token_id")
"""Fields that are read from a generation_config.json."""


def default_params(config: Mapping[str, Any]) -> DefaultParams:
    """Reads the fields of a generation_config.json; fields that it lacks get no default.

    Raises ValueError that names the field, its value and the range.
    """
    values: dict[str, Any] = {}
    for name, own_name in _OWN_NAMES.items():
        if (value := config.get(name)) is None:
            continue
        if name == "top_k" and value == _ALL_TOKENS:
            value = 0
        limit = API_LIMITS[own_name]
        is_whole = limit.kind is int
        is_number = _is_number(value) and (not is_whole or value == int(value) <= _UINT32_MAX)
        if not is_number or not limit.holds(value):
            allowed = f"an integer of {limit}" if is_whole else f"in {limit}"
            raise ValueError(f"{name} is {_shown(value)}; it must be {allowed}")
        values[own_name] = limit.kind(value)
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


def _checked_override(text: str) -> str:
    check_override(from_json(text))
    return text


GenerationOverride = Annotated[str, BeforeValidator(json_text), AfterValidator(_checked_override)]
"""A generation_config.json as text."""

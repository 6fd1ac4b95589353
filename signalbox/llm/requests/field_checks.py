"""Checks and converts the fields of `SamplingParams`, which Python callers may give any type."""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

ALL_TOKENS = -1
_MAX_SEED = (1 << 64) - 1

INTEGERS = ("n", "top_k", "min_tokens")
OPTIONAL_INTEGERS = ("seed", "max_tokens", "logprobs", "prompt_logprobs", "best_of")
NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
)
FLAGS = (
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "use_beam_search",
    "early_stopping",
)


def check_types(params: object) -> None:
    """Checks the integers, numbers and flags of sampling parameters. Raises TypeError."""
    for name in (*INTEGERS, *OPTIONAL_INTEGERS):
        value = getattr(params, name)
        if not is_integer(value) and not (value is None and name in OPTIONAL_INTEGERS):
            raise wrong_type(name, value, "an integer")
    for name in NUMBERS:
        if not _is_number(value := getattr(params, name)):
            raise wrong_type(name, value, "a number")
    for name in FLAGS:
        if not isinstance(value := getattr(params, name), bool):
            raise wrong_type(name, value, "True or False")


def check_bounds(values: Mapping[str, Any]) -> None:
    """Checks what the router's unsigned numbers exclude: values below 0 and above their range."""
    for name, least, most in (
        ("top_k", 0, None),
        ("min_tokens", 0, None),
        ("prompt_logprobs", ALL_TOKENS, None),
        ("logprobs", ALL_TOKENS, None),
        ("seed", 0, _MAX_SEED),
    ):
        value = values.get(name, 0)
        if value < least or (most is not None and value > most):
            raise ValueError(f"sampling_params.{name} is {value}; it is out of range")
    max_tokens = values.get("max_tokens")
    if max_tokens is not None and 1 <= max_tokens < values["min_tokens"]:
        raise ValueError(
            f"sampling_params.min_tokens is {values['min_tokens']}; "
            f"it must be at most max_tokens, {max_tokens}"
        )


def is_integer(value: object) -> bool:
    """Returns whether a value is a whole number, and not True or False."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def wrong_type(name: str, value: object, wanted: str) -> TypeError:
    """Returns the error for a field of another type."""
    return TypeError(f"sampling_params.{name} is {value!r}; it must be {wanted}")


def strings(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns a field that is a string or several."""
    given = (value,) if isinstance(value, str) else tuple(value or ())
    for string in given:
        if not isinstance(string, str):
            raise wrong_type(name, string, "a string or a list of strings")
    return given


def token_ids(name: str, value: Sequence[int] | None) -> tuple[int, ...]:
    """Returns a field that is a list of token ids, which the model's vocabulary may lack."""
    given = tuple(value or ())
    for token_id in given:
        if not is_integer(token_id):
            raise wrong_type(name, token_id, "a list of integers")
    return tuple(int(token_id) for token_id in given)


def biases(value: Mapping[int, float] | None) -> list[tuple[int, float]]:
    """Returns logit_bias as pairs of token id and bias."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise wrong_type("logit_bias", value, "a dictionary of token ids and numbers")
    for bias in value.values():
        if not _is_number(bias):
            raise wrong_type("logit_bias", bias, "a dictionary of token ids and numbers")
    floats = [float(bias) for bias in value.values()]
    return list(zip(token_ids("logit_bias", tuple(value)), floats, strict=True))

"""`SamplingParams`: how tokens are drawn, with the fields and defaults that vLLM's users know.

The ranges are the router's. A field of vLLM's that is not served may be given at its neutral
default, so that scripts which spell it out go on working; any other value is refused by name.
"""

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from router import validation
from signalbox.llm.errors import refusing

RANDOM_SEED = -1
ALL_TOKENS = -1
_MAX_SEED = (1 << 64) - 1

_INTEGERS = ("n", "top_k", "min_tokens")
_OPTIONAL_INTEGERS = ("seed", "max_tokens", "logprobs")
_NUMBERS = ("temperature", "top_p", "min_p")
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
_SERVED = {*_INTEGERS, *_OPTIONAL_INTEGERS, *_NUMBERS, *_FLAGS, "stop", "stop_token_ids"}


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of a request are drawn and when it ends. Raises ValueError or TypeError.

    Args:
        n: sequences to draw for the prompt.
        temperature: 0 is greedy.
        top_p, top_k, min_p: filters; a top_k of 0 or -1 keeps all tokens.
        seed: makes the draws repeatable; None takes the next seed of the engine's own sequence.
        max_tokens: most tokens of a sequence; None is all that the model's window has room for. A
            sequence that reaches the end of the window ends there, too.
        min_tokens: no sequence ends before it has so many.
        stop: strings that end a sequence; they are not part of its text unless
            include_stop_str_in_output.
        stop_token_ids: tokens that end a sequence, beside the model's own unless ignore_eos.
        logprobs: report the log probability of each token, and of so many likeliest ones.
        skip_special_tokens: whether special tokens have no text.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    presence_penalty: float = field(default=0.0, repr=False)
    frequency_penalty: float = field(default=0.0, repr=False)
    repetition_penalty: float = field(default=1.0, repr=False)
    best_of: int | None = field(default=None, repr=False)
    logit_bias: Any = field(default=None, repr=False)
    prompt_logprobs: int | None = field(default=None, repr=False)
    bad_words: Any = field(default=None, repr=False)
    allowed_token_ids: Any = field(default=None, repr=False)
    logits_processors: Any = field(default=None, repr=False)
    structured_outputs: Any = field(default=None, repr=False)
    guided_decoding: Any = field(default=None, repr=False)
    truncate_prompt_tokens: int | None = field(default=None, repr=False)
    use_beam_search: bool = field(default=False, repr=False)
    length_penalty: float = field(default=1.0, repr=False)
    early_stopping: bool = field(default=False, repr=False)
    detokenize: bool = field(default=True, repr=False)
    spaces_between_special_tokens: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        self.fields()

    def fields(self) -> dict[str, Any]:
        """Returns what is set, checked, under the names and in the terms of the router."""
        self._refuse_unserved()
        self._check_types()
        given = {name: getattr(self, name) for name in (*_INTEGERS, *_OPTIONAL_INTEGERS)}
        values: dict[str, Any] = {n: int(value) for n, value in given.items() if value is not None}
        values |= {name: float(getattr(self, name)) for name in _NUMBERS}
        values |= {name: getattr(self, name) for name in _FLAGS}
        values |= {"stop": _strings(self.stop), "stop_token_ids": _token_ids(self.stop_token_ids)}
        if self.top_k == ALL_TOKENS:
            values["top_k"] = 0
        if self.seed == RANDOM_SEED:
            del values["seed"]
        self._check_bounds(values)
        with refusing():
            validation.check_sampling_values(values)
        return values

    def _refuse_unserved(self) -> None:
        for name, neutral in _UNSERVED.items():
            value = getattr(self, name)
            is_empty = neutral is None and isinstance(value, list | dict | tuple) and not value
            if value != neutral and not is_empty and (name, value) != ("best_of", self.n):
                raise ValueError(f"sampling_params.{name} is not served yet; leave it {neutral!r}")

    def _check_types(self) -> None:
        for name in (*_INTEGERS, *_OPTIONAL_INTEGERS):
            value = getattr(self, name)
            if not _is_integer(value) and not (value is None and name in _OPTIONAL_INTEGERS):
                raise _wrong_type(name, value, "an integer")
        for name in _NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, numbers.Real) or isinstance(value, bool):
                raise _wrong_type(name, value, "a number")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _wrong_type(name, getattr(self, name), "True or False")

    @staticmethod
    def _check_bounds(values: Mapping[str, Any]) -> None:
        """What cannot be wrong in the router, whose numbers are unsigned."""
        for name, most in (("top_k", None), ("min_tokens", None), ("seed", _MAX_SEED)):
            value = values.get(name, 0)
            if value < 0 or (most is not None and value > most):
                raise ValueError(f"sampling_params.{name} is {value}; it is out of range")
        max_tokens = values.get("max_tokens")
        if max_tokens is not None and 1 <= max_tokens < values["min_tokens"]:
            raise ValueError(
                f"sampling_params.min_tokens is {values['min_tokens']}; "
                f"it must be at most max_tokens, {max_tokens}"
            )


_UNSERVED: Mapping[str, object] = {
    one.name: one.default for one in dataclasses.fields(SamplingParams) if one.name not in _SERVED
}
"""Field to its neutral value."""


def _is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _wrong_type(name: str, value: object, wanted: str) -> TypeError:
    return TypeError(f"sampling_params.{name} is {value!r}; it must be {wanted}")


def _strings(value: str | Sequence[str] | None) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else tuple(value or ())
    for string in strings:
        if not isinstance(string, str):
            raise _wrong_type("stop", string, "a string or a list of strings")
    return strings


def _token_ids(value: Sequence[int] | None) -> tuple[int, ...]:
    token_ids = tuple(value or ())
    for token_id in token_ids:
        if not _is_integer(token_id):
            raise _wrong_type("stop_token_ids", token_id, "a list of integers")
        if token_id < 0:
            raise ValueError(f"sampling_params.stop_token_ids has {token_id}; ids are at least 0")
    return tuple(int(token_id) for token_id in token_ids)

"""Checks the fields of a request that name tokens or words: how many, which, and what for.

Bounds keep what a request costs each step in proportion to what it is worth.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from router.model import ServedModel
from rpc.errors import InvalidArgument
from rpc.sampling_params import MAX_LOGPROB_TOKEN_IDS

MAX_STOPS = 64
MAX_STOP_BYTES = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_BIASES = 1024
MAX_BIAS = 100
MAX_BAD_WORDS = 64
MAX_BAD_WORD_BYTES = 128
_PREFIX = "sampling_params"


def check_token_ids(token_ids: Sequence[int], *, field: str, model: ServedModel) -> None:
    highest = max(token_ids, default=0)
    if highest >= model.vocab_size:
        raise InvalidArgument(field, highest, f"ids in [0, {model.vocab_size})")


def check_tokens_exist(fields: Mapping[str, Any], model: ServedModel) -> None:
    """Checks that the vocabulary has the tokens that a request names."""
    for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        check_token_ids(fields.get(name, ()), field=f"{_PREFIX}.{name}", model=model)
    biased = [token_id for token_id, _ in fields.get("logit_bias", ())]
    check_token_ids(biased, field=f"{_PREFIX}.logit_bias.token_id", model=model)


def check_lists(fields: Mapping[str, Any]) -> None:
    """Checks what does not depend on the model."""
    _check_strings(fields.get("stop", ()), name="stop", most=MAX_STOPS, most_bytes=MAX_STOP_BYTES)
    _check_strings(
        fields.get("bad_words", ()),
        name="bad_words",
        most=MAX_BAD_WORDS,
        most_bytes=MAX_BAD_WORD_BYTES,
    )
    for word in fields.get("bad_words", ()):
        if not word.strip():
            raise InvalidArgument(f"{_PREFIX}.bad_words", word, "words of more than spaces")
    _check_length(fields.get("stop_token_ids", ()), "stop_token_ids", MAX_STOP_TOKEN_IDS)
    _check_length(fields.get("logprob_token_ids", ()), "logprob_token_ids", MAX_LOGPROB_TOKEN_IDS)
    _check_distinct(fields.get("allowed_token_ids", ()), f"{_PREFIX}.allowed_token_ids")
    _check_biases(fields.get("logit_bias", ()))


def _check_strings(strings: Sequence[str], *, name: str, most: int, most_bytes: int) -> None:
    field = f"{_PREFIX}.{name}"
    if len(strings) > most:
        raise InvalidArgument(field, f"a list of {len(strings)}", f"at most {most} strings")
    for string in strings:
        if not 1 <= len(string.encode()) <= most_bytes:
            raise InvalidArgument(field, string, f"strings of 1 to {most_bytes} bytes")


def _check_length(values: Sequence[object], name: str, most: int) -> None:
    if len(values) > most:
        raise InvalidArgument(f"{_PREFIX}.{name}", f"a list of {len(values)}", f"at most {most}")


def _check_biases(biases: Sequence[tuple[int, float]]) -> None:
    _check_length(biases, "logit_bias", MAX_BIASES)
    for _, bias in biases:
        if math.isnan(bias) or abs(bias) > MAX_BIAS:
            raise InvalidArgument(f"{_PREFIX}.logit_bias.bias", bias, f"[-{MAX_BIAS}, {MAX_BIAS}]")
    _check_distinct([token_id for token_id, _ in biases], f"{_PREFIX}.logit_bias.token_id")


def _check_distinct(token_ids: Sequence[int], field: str) -> None:
    seen = set[int]()
    for token_id in token_ids if len(set(token_ids)) < len(token_ids) else ():
        if token_id in seen:
            raise InvalidArgument(field, token_id, "each token once")
        seen.add(token_id)

"""Checks the fields of a request that name tokens or words.

The bounds keep the cost of a request's steps in proportion.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from signalbox_contract import sampling_params
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sampling_params import BIAS
from signalbox_router.prompt.served_model import ServedModel

MAX_STOPS = 64
MAX_STOP_BYTES = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_BAD_WORDS = 64
MAX_BAD_WORD_BYTES = 128
MAX_ITEMS = sampling_params.MAX_ITEMS | {
    "stop": MAX_STOPS,
    "stop_token_ids": MAX_STOP_TOKEN_IDS,
    "bad_words": MAX_BAD_WORDS,
}
RUN = 1 << 16
"""Token ids that are processed in one call, which keeps the interpreter's lock."""
_PREFIX = "sampling_params"


def as_list(token_ids: Sequence[int]) -> list[int]:
    """Returns a copy of a message's field."""
    copied: list[int] = []
    for start in range(0, len(token_ids), RUN):  # other threads run between two calls
        copied += token_ids[start : start + RUN]
    return copied


def allowed_ids(model: ServedModel) -> str:
    """Returns the words for the ids that a model's vocabulary has, and vLLM's for the others."""
    return f"ids in [0, {model.vocab_size}), others are out of vocabulary"


def check_token_ids(token_ids: Sequence[int], *, field: str, model: ServedModel) -> None:
    for start in range(0, len(token_ids), RUN):  # other threads run between two calls
        run = token_ids[start : start + RUN]
        for extreme in (min(run), max(run)):
            if not 0 <= extreme < model.vocab_size:
                raise InvalidArgument(field, extreme, allowed_ids(model))


def check_counts(counts: Mapping[str, int]) -> None:
    """Checks the lengths of a request's lists before they are processed."""
    for name, most in MAX_ITEMS.items():
        if counts.get(name, 0) > most:
            unit = " strings" if name in ("stop", "bad_words") else ""
            field, count = f"{_PREFIX}.{name}", counts[name]
            raise InvalidArgument(field, f"a list of {count}", f"at most {most}{unit}")


def check_num_allowed(token_ids: Sequence[int], model: ServedModel) -> None:
    """Checks the length of allowed_token_ids, which has each token at most once."""
    if len(token_ids) > model.vocab_size:
        count, allowed = f"a list of {len(token_ids)}", "each token of the vocabulary once"
        raise InvalidArgument(f"{_PREFIX}.allowed_token_ids", count, allowed)


def check_tokens_exist(fields: Mapping[str, Any], model: ServedModel) -> None:
    """Checks that the vocabulary has the tokens that a request names."""
    for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        check_token_ids(fields.get(name, ()), field=f"{_PREFIX}.{name}", model=model)
    biased = [token_id for token_id, _ in fields.get("logit_bias", ())]
    check_token_ids(biased, field=f"{_PREFIX}.logit_bias.token_id", model=model)


def check_lists(fields: Mapping[str, Any]) -> None:
    """Checks lists that do not depend on the model."""
    check_counts({name: len(fields.get(name, ())) for name in MAX_ITEMS})
    _check_strings(fields.get("stop", ()), name="stop", most_bytes=MAX_STOP_BYTES)
    _check_strings(fields.get("bad_words", ()), name="bad_words", most_bytes=MAX_BAD_WORD_BYTES)
    for word in fields.get("bad_words", ()):
        if not word.strip():
            raise InvalidArgument(f"{_PREFIX}.bad_words", word, "words that are not only spaces")
    _check_distinct(fields.get("allowed_token_ids", ()), f"{_PREFIX}.allowed_token_ids")
    _check_biases(fields.get("logit_bias", ()))


def _check_strings(strings: Sequence[str], *, name: str, most_bytes: int) -> None:
    field = f"{_PREFIX}.{name}"
    for string in strings:
        if not 1 <= len(string.encode()) <= most_bytes:
            raise InvalidArgument(field, string, f"strings of 1 to {most_bytes} bytes")


def _check_biases(biases: Sequence[tuple[int, float]]) -> None:
    for _, bias in biases:
        BIAS.check(f"{_PREFIX}.logit_bias.bias", bias)
    _check_distinct([token_id for token_id, _ in biases], f"{_PREFIX}.logit_bias.token_id")


def _check_distinct(token_ids: Sequence[int], field: str) -> None:
    seen = set[int]()
    for token_id in token_ids if len(set(token_ids)) < len(token_ids) else ():
        if token_id in seen:
            raise InvalidArgument(field, token_id, "each token once")
        seen.add(token_id)

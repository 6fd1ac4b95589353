"""Parameters by which a request's tokens are sampled, and the values that they may have.

`LIMITS` has a row for each number. The checks of router, scheduler, worker and Python API, the
codec (`signalbox_contract.sampling_codec`) and the flags of the commands follow from it. The router
applies every default.

A new number is a row of `LIMITS` and a field here, of inference.v1's and common.v1's
SamplingParams, of the HTTP body (signalbox_router/apis/openai/requests/types.py) and of the Python
API's `SamplingParams`. What the worker makes of a filter begins in
kernels/signalbox_kernels/filters.py.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain
from typing import NamedTuple

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.structured_output.grammar_cost import UNMEASURED, GrammarCost
from signalbox_contract.structured_output.scope import WHOLE, Scope

GREEDY_BELOW = 1e-5
"""Least temperature that samples; below it the likeliest token is taken."""
_LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Limit:
    """Kind and range of a number. NaN and infinity are outside every range."""

    kind: type[int] | type[float]
    meaning: str = ""
    """Description in the help of the flag; empty if no flag sets the number."""
    _: KW_ONLY
    least: float = -_LARGEST
    above: float = -math.inf
    """Lower bound that is not allowed itself."""
    most: float = _LARGEST

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most and value > self.above

    def __str__(self) -> str:
        """Returns the range, as "(0, 1]" or "at least 1"."""
        if self.most == _LARGEST:
            return f"at least {self.least}"
        low = f"({self.above}" if self.above > -math.inf else f"[{self.least}"
        return f"{low}, {self.most}]"

    def check(self, field: str, value: float) -> None:
        """Raises InvalidArgument for a value outside the range."""
        if not self.holds(value):
            raise InvalidArgument(field, value, str(self))


_PENALISED = "subtracted from logits of tokens already generated"
LIMITS = {
    "temperature": Limit(float, "softmax temperature (0 is greedy)", least=0),
    "top_p": Limit(float, "nucleus mass", above=0, most=1),
    "top_k": Limit(int, "most likely tokens kept; 0 keeps all", least=0),
    "min_p": Limit(
        float, "least probability kept, as a fraction of the most likely token's", least=0, most=1
    ),
    "typical_p": Limit(float, "mass of the most typical tokens kept", above=0, most=1),
    "presence_penalty": Limit(float, _PENALISED, least=-2, most=2),
    "frequency_penalty": Limit(float, f"{_PENALISED}, for each time", least=-2, most=2),
    "repetition_penalty": Limit(
        float, "divides logits of tokens in prompt and output", above=0, most=10
    ),
    "seed": Limit(int, "makes a result repeatable", least=0, most=(1 << 64) - 1),
    "min_tokens": Limit(int, "least tokens before the text can end", least=0),
}
"""The numbers of `SamplingParams` and of its message, which have the same names."""
API_LIMITS = LIMITS | {
    "temperature": replace(LIMITS["temperature"], most=2),
    "max_tokens": Limit(int, "most tokens to generate", least=1),
    "n": Limit(int, "answers to generate", least=1, most=64),
    "best_of": Limit(
        int, "answers to generate, of which the n likeliest are shown", least=1, most=64
    ),
    "logprobs": Limit(int, least=0, most=20),
    "prompt_logprobs": Limit(int, least=0, most=20),
}
"""The numbers of the APIs' sampling parameters."""
BIAS = Limit(float, least=-100, most=100)
"""Number that is added to a logit."""
MAX_ITEMS = {"logit_bias": 1024, "logprob_token_ids": 128}
"""Most items of lists."""
_MAX_BAD_TOKENS = 16_384
"""Most tokens of all bad words of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The fields of common.v1's SamplingParams; the defaults are neutral, and greedy.

    The scheduler only reads the fields that bound or end a sequence.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    typical_p: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token id and the number that is added to its logit."""
    allowed_token_ids: tuple[int, ...] = ()
    """Empty allows all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that are never completed."""
    num_prompt_logprobs: int | None = None
    structured_output: tuple[str, ...] | None = None
    """The kind, as the proto names it, and its texts."""
    grammar_cost: GrammarCost = UNMEASURED
    """CPU time and memory for compiling `structured_output`."""
    constraint_scope: Scope = WHOLE
    """Parts of the sequence that `structured_output` applies to."""
    logprob_token_ids: tuple[int, ...] = ()
    """Tokens reported beside each sampled one instead of the likeliest; num_logprobs is 0 then."""


def find_fault(
    params: SamplingParams, *, vocab_size: int, where: str = "sampling_params"
) -> InvalidArgument | None:
    """Returns why no worker with this vocabulary can sample so; None if one can.

    Args:
        where: name of the field that has the parameters.
    """
    faults = chain(_number_faults(params, vocab_size), _list_faults(params, vocab_size))
    found = next(faults, None)
    return None if found is None else InvalidArgument(f"{where}.{found.name}", *found[1:])


class _Fault(NamedTuple):
    name: str
    value: object
    allowed: str


def _number_faults(params: SamplingParams, vocab_size: int) -> Iterator[_Fault]:
    for name, limit in LIMITS.items():
        if not limit.holds(value := getattr(params, name)):
            yield _Fault(name, value, str(limit))
    for name in ("num_logprobs", "num_prompt_logprobs"):
        if not 0 <= (count := getattr(params, name) or 0) <= vocab_size:
            yield _Fault(name, count, f"[0, {vocab_size}]")
    if params.logprob_token_ids and params.num_logprobs != 0:
        yield _Fault("num_logprobs", params.num_logprobs, "0 with logprob_token_ids")


def _list_faults(params: SamplingParams, vocab_size: int) -> Iterator[_Fault]:
    biased = [token_id for token_id, _ in params.logit_bias]
    bad_tokens = [token_id for run in params.bad_words for token_id in run]
    for name, count, most in (
        ("logit_biases", len(biased), MAX_ITEMS["logit_bias"]),
        ("logprob_token_ids", len(params.logprob_token_ids), MAX_ITEMS["logprob_token_ids"]),
        ("bad_words", len(bad_tokens), _MAX_BAD_TOKENS),
    ):
        if count > most:
            yield _Fault(name, f"{count} tokens", f"at most {most}")
    for _, bias in params.logit_bias:
        if not BIAS.holds(bias):
            yield _Fault("logit_biases", bias, str(BIAS))
    scope = params.constraint_scope
    if scope.max_reasoning_tokens is not None and not scope.closing_token_ids:
        yield _Fault("constraint_scope.closing_token_ids", (), "a token that ends the reasoning")
    if not all(params.bad_words):
        yield _Fault("bad_words", (), "runs of at least one token")
    if len(set(biased)) < len(biased):
        yield _Fault("logit_bias_token_ids", "a token twice", "distinct tokens")
    for name, token_ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias_token_ids", biased),
        ("allowed_token_ids", params.allowed_token_ids),
        ("logprob_token_ids", params.logprob_token_ids),
        ("bad_words", bad_tokens),
        ("constraint_scope", tuple(scope.token_ids)),
    ):
        for value in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= value < vocab_size:
                yield _Fault(name, value, f"[0, {vocab_size})")

"""`SamplingParams`: vLLM's sampling parameters, with its fields and defaults.

The ranges are the router's. A field of vLLM's that is not served may be given at its neutral
default, so that scripts that set it continue to work; any other value is refused by name.
"""

import copy
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from signalbox.llm.requests.errors import refusing
from signalbox.llm.requests.field_checks import (
    ALL_TOKENS,
    SCALARS,
    biases,
    scalar,
    strings,
    token_ids,
    wrong_type,
)
from signalbox.llm.requests.structured_outputs import StructuredOutputsParams
from signalbox_contract.sampling_defaults import SamplingDefaults
from signalbox_contract.sampling_params import API_LIMITS, BIAS, Limit
from signalbox_router.params import params_validation

RANDOM_SEED = -1
LOGPROBS = ("logprobs", "prompt_logprobs")
LIMITS = API_LIMITS | dict.fromkeys(LOGPROBS, Limit(int, least=ALL_TOKENS))
"""Ranges of the numbers; `EngineArgs.max_logprobs` is the bound of log probabilities."""

_OF_BEAMS = ("length_penalty", "early_stopping")
_STRINGS = ("stop", "bad_words")
_TOKEN_IDS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")


class RequestOutputKind(enum.Enum):
    """Part of the output that an engine returns."""

    CUMULATIVE = 0
    """Each output contains everything so far."""
    DELTA = 1
    """Each output contains the new part."""
    FINAL_ONLY = 2
    """One output at the end contains everything."""


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """Parameters of a request's sampling and end. Raises ValueError or TypeError.

    Args:
        n: sequences to draw for the prompt.
        temperature: 0 is greedy.
        top_p, top_k, min_p, typical_p: filters; a top_k of 0 or -1 keeps all tokens.
        presence_penalty, frequency_penalty: taken off the logits of tokens that the sequence has
            generated: once, and for each time.
        repetition_penalty: weakens tokens of the prompt and the output; 1 does nothing.
        logit_bias: token id to what is added to its logit.
        allowed_token_ids: nothing else is generated.
        bad_words: strings that are never completed, as the tokens they are alone or after a space.
        seed: makes the draws repeatable; None takes the next seed of the engine's own sequence.
        max_tokens: most tokens of a sequence; None is all that the model's window has room for. A
            sequence that reaches the end of the window ends there, too.
        min_tokens: no sequence ends before it has so many.
        stop: strings that end a sequence; they are not part of its text unless
            include_stop_str_in_output.
        stop_token_ids: tokens that end a sequence, beside the model's own unless ignore_eos.
        logprobs: report the log probability of each token, and of so many likeliest ones; -1 of
            all, where `EngineArgs.max_logprobs` lets that.
        prompt_logprobs: the same for the tokens of the prompt.
        logprob_token_ids: up to 128 tokens reported beside each token instead of the likeliest
            ones; `logprobs` is their number then, or None.
        structured_outputs: what the text must conform to.
        speculation: False computes no drafts; the output is the same.
        prediction: text that the output repeats in large part, from which an engine that
            speculates drafts.
        truncate_prompt_tokens: keep so many of the prompt's last tokens; -1 as many as fit.
        output_kind: what the outputs of an engine hold; `LLM` returns everything at the end.
        skip_special_tokens: whether special tokens have no text.
        best_of: sequences to draw, of which the n with the highest mean log probability are
            returned; None is n.
        use_beam_search: search instead of drawing, along best_of beams; with length_penalty and
            early_stopping, as in `BeamSearchParams`.
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
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    typical_p: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    best_of: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    speculation: bool = True
    prediction: str | None = None
    logits_processors: Any = field(default=None, repr=False)
    guided_decoding: Any = field(default=None, repr=False)
    detokenize: bool = field(default=True, repr=False)
    spaces_between_special_tokens: bool = field(default=True, repr=False)
    stream_interval: int | None = field(default=None, repr=False)
    flat_logprobs: bool = field(default=False, repr=False)
    prompt_logprob_token_ids: Any = field(default=None, repr=False)
    prompt_logprob_start: int | None = field(default=None, repr=False)
    trace_decode_token_ids: Any = field(default=None, repr=False)
    routed_experts_prompt_start: int = field(default=0, repr=False)
    watermarking: bool | None = field(default=None, repr=False)
    thinking_token_budget: int | None = field(default=None, repr=False)
    repetition_detection: Any = field(default=None, repr=False)
    extra_args: Any = field(default=None, repr=False)
    skip_reading_prefix_cache: bool | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.fields()

    def clone(self) -> Self:
        """Returns a deep copy."""
        return copy.deepcopy(self)

    @classmethod
    def from_optional(cls, **given: Any) -> Self:
        """Returns parameters of the given values; None is the default, except for `max_tokens`.

        Keys of logit_bias may be texts, as in JSON, and its values are cut to [-100, 100].
        """
        kept = {k: value for k, value in given.items() if value is not None or k == "max_tokens"}
        if "logit_bias" in kept:
            pairs = kept["logit_bias"].items()
            kept["logit_bias"] = {int(i): min(BIAS.most, max(BIAS.least, x)) for i, x in pairs}
        return cls(**kept)

    def fields(self) -> dict[str, Any]:
        """Returns the set fields, checked, under the router's names."""
        self._refuse_unserved()
        values = {
            name: value
            for name, kind in _SCALARS.items()
            if (value := scalar(name, kind, getattr(self, name))) is not None
        }
        self._check_callers()
        values |= {name: strings(name, getattr(self, name)) for name in _STRINGS}
        values |= {name: token_ids(name, getattr(self, name)) for name in _TOKEN_IDS}
        values |= {"logit_bias": biases(self.logit_bias)}
        if self.top_k == ALL_TOKENS:
            values["top_k"] = 0
        if self.seed == RANDOM_SEED:
            del values["seed"]
        if self.structured_outputs is not None:
            values["structured_output"] = _constraint(self.structured_outputs)
        if self.prediction is not None:
            if not isinstance(self.prediction, str):
                raise wrong_type("prediction", self.prediction, "a string")
            values["prediction"] = self.prediction
        self._check_min_tokens()
        self._check_logprob_token_ids()
        if self.logprob_token_ids:
            values.pop("logprobs", None)
        _move_beam_search(values)
        with refusing():
            params_validation.check_sampling_values(values, LIMITS)
        return values

    def _refuse_unserved(self) -> None:
        for name, neutral in _UNSERVED.items():
            value = getattr(self, name)
            is_empty = neutral is None and isinstance(value, list | dict | tuple) and not value
            if value != neutral and not is_empty:
                instead = "give structured_outputs" if "guided" in name else f"leave it {neutral!r}"
                raise ValueError(f"sampling_params.{name} is not served; {instead}")

    def _check_callers(self) -> None:
        """Checks the fields that the router does not get, and lists that it takes when empty."""
        if not isinstance(self.output_kind, RequestOutputKind):
            raise wrong_type("output_kind", self.output_kind, "a RequestOutputKind")
        kept = scalar("truncate_prompt_tokens", int | None, self.truncate_prompt_tokens)
        if kept == 0 or (kept or 1) < ALL_TOKENS:
            raise ValueError(
                f"sampling_params.truncate_prompt_tokens is {kept}; it must be at least 1, or -1"
            )
        if self.allowed_token_ids is not None and not len(self.allowed_token_ids):
            raise ValueError("sampling_params.allowed_token_ids is empty; None allows every token")

    def _check_min_tokens(self) -> None:
        if self.max_tokens is not None and 1 <= self.max_tokens < self.min_tokens:
            raise ValueError(
                f"sampling_params.min_tokens is {self.min_tokens}; "
                f"it must be at most max_tokens, {self.max_tokens}"
            )

    def _check_logprob_token_ids(self) -> None:
        count = len(self.logprob_token_ids or ())
        if count and self.logprobs not in (None, count):
            raise ValueError(
                f"sampling_params.logprobs is {self.logprobs}; with logprob_token_ids it must be"
                f" None or as many as they are, {count}"
            )


def default_sampling_params(defaults: SamplingDefaults) -> SamplingParams:
    """Returns the parameters of a request without any: a model's defaults, then the class's."""
    return SamplingParams(**defaults.fields())


def checked(params: SamplingParams | None, default: SamplingParams) -> SamplingParams:
    """Returns the parameters, or `default` for None. Raises TypeError for another type."""
    if params is None:
        return default
    if not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params is a {type(params).__name__}; give SamplingParams")
    return params


_UNSERVED: Mapping[str, object] = {
    one.name: one.default for one in dataclasses.fields(SamplingParams) if not one.repr
}
"""Neutral value of each field that is not served."""
_SCALARS: Mapping[str, Any] = {
    one.name: one.type
    for one in dataclasses.fields(SamplingParams)
    if one.repr and one.type in SCALARS and one.name != "truncate_prompt_tokens"
}
"""Annotation of each field that the router gets as a number or a flag."""


def _move_beam_search(values: dict[str, Any]) -> None:
    """Moves the fields of beam search to the router's place."""
    search = {name: values.pop(name) for name in _OF_BEAMS}
    if values.pop("use_beam_search"):
        values["beam_search"] = {"width": values.pop("best_of", values["n"])} | search
    elif search != {"length_penalty": 1.0, "early_stopping": False}:
        name = "length_penalty" if search["length_penalty"] != 1.0 else "early_stopping"
        raise ValueError(f"sampling_params.{name} is {search[name]} without use_beam_search")


def _constraint(outputs: object) -> tuple[str, ...]:
    if not isinstance(outputs, StructuredOutputsParams):
        raise wrong_type("structured_outputs", outputs, "a StructuredOutputsParams")
    return outputs.constraint()

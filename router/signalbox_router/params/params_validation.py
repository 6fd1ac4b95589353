"""Checks clients' parameters before any memory is allocated for them.

Values come as a mapping of the fields that are set, by proto name; an invalid value raises
InvalidArgument that names the field. The ranges of numbers are in
`signalbox_contract.sampling_params`.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.request import PRIORITY
from signalbox_contract.sampling_defaults import SamplingDefaults
from signalbox_contract.sampling_params import (
    API_LIMITS,
    GREEDY_BELOW,
    LIMITS,
    Limit,
    SamplingParams,
)
from signalbox_contract.structured_output.grammar_cost import UNMEASURED
from signalbox_contract.structured_output.scope import WHOLE
from signalbox_contract.wording import counted
from signalbox_router.params.branch_validation import beam_search, check_sequences
from signalbox_router.params.generation_params import NO_TEXTS, EncodedFields, GenerationParams
from signalbox_router.params.sampling_defaults import with_defaults
from signalbox_router.params.structured_output_check import check_structured_output
from signalbox_router.params.token_validation import (
    check_lists,
    check_num_allowed,
    check_tokens_exist,
)
from signalbox_router.prompt.chat.length_errors import ContextOverflow, TextTooLong
from signalbox_router.prompt.served_model import ServedModel
from signalbox_rpc.http import request_ids

MAX_CACHE_SALT_BYTES = 128
REQUEST_LIMITS = {"stream_interval": Limit(int, least=1)}
"""Ranges of fields outside sampling_params."""


def check_request_id(request_id: str) -> None:
    if not request_id or not request_ids.is_valid(request_id):
        allowed = f"1 to {request_ids.MAX_ID_CHARS} printable ASCII characters"
        raise InvalidArgument("request_id", request_id, allowed)


def check_priority(priority: int) -> None:
    PRIORITY.check("priority", priority)


def check_cache_salt(cache_salt: str) -> None:
    if len(cache_salt.encode()) > MAX_CACHE_SALT_BYTES:
        raise InvalidArgument("cache_salt", cache_salt, f"at most {MAX_CACHE_SALT_BYTES} bytes")


def check_text(text: str, *, field: str, max_bytes: int) -> None:
    """Checks the length of a text, which bounds the work of tokenising it."""
    num_bytes = len(text) if text.isascii() else len(text.encode())
    if num_bytes > max_bytes:
        raise TextTooLong(field, f"a text of {num_bytes} bytes", f"at most {max_bytes} bytes")


def check_sampling(
    fields: Mapping[str, Any], model: ServedModel, limits: Mapping[str, Limit] = API_LIMITS
) -> None:
    """Checks sampling fields that do not depend on the prompt."""
    check_num_allowed(fields.get("allowed_token_ids", ()), model)
    check_sampling_values(fields, limits)
    check_tokens_exist(fields, model)


def check_sampling_values(
    fields: Mapping[str, Any], limits: Mapping[str, Limit] = API_LIMITS
) -> None:
    """Checks sampling fields that depend neither on the prompt nor on the model."""
    for name, value in fields.items():
        if name in limits:
            limits[name].check(f"sampling_params.{name}", value)
    check_sequences(fields)
    check_lists(fields)
    if fields.get("prediction") and not fields.get("speculation", True):
        allowed = "none with speculation: false"
        raise InvalidArgument("sampling_params.prediction", "a text", allowed)
    if (constraint := fields.get("structured_output")) is not None:
        check_structured_output(constraint)


def check_prediction(token_ids: Sequence[int], model: ServedModel) -> None:
    """Checks the length of what the output is expected to be."""
    if len(token_ids) > model.max_model_len:
        what, most = counted(len(token_ids), "token"), counted(model.max_model_len, "token")
        raise InvalidArgument("sampling_params.prediction", f"a text of {what}", f"at most {most}")


def check_request_values(fields: Mapping[str, float]) -> None:
    """Checks numbers outside sampling_params."""
    for name, limit in REQUEST_LIMITS.items():
        if name in fields:
            limit.check(name, fields[name])


def check_truncation(
    asked: int | None,
    model: ServedModel,
    *,
    field: str = "truncate_prompt_tokens",
    or_all: bool = False,
) -> None:
    """Checks the number of tokens that are kept of a prompt.

    Args:
        or_all: True if -1 is allowed, which keeps what the model takes.
    """
    if asked is None or (or_all and asked == -1) or 1 <= asked <= model.max_model_len:
        return
    allowed = f"[1, {model.max_model_len}]" + (" or -1" if or_all else "")
    if asked > model.max_model_len:  # clients look for vLLM's words
        allowed += ", where the model's window ends. Please request a smaller truncation size."
    raise InvalidArgument(field, asked, allowed)


def check_prompt_length(num_tokens: int, *, field: str, model: ServedModel) -> None:
    if num_tokens < 1:
        raise InvalidArgument(field, "a prompt of 0 tokens", "at least 1 token")
    if num_tokens >= model.max_model_len:
        raise ContextOverflow(
            field,
            f"a prompt of {counted(num_tokens, 'token')}",
            f"at most {counted(model.max_model_len - 1, 'token')}",
            window=model.max_model_len,
            num_prompt_tokens=num_tokens,
        )


def resolve_params(
    fields: Mapping[str, Any],
    *,
    num_prompt_tokens: int,
    model: ServedModel,
    defaults: SamplingDefaults,
    max_default_tokens: int | None = None,
    cuts_max_tokens: bool = False,
    encoded: EncodedFields = NO_TEXTS,
) -> GenerationParams:
    """Applies the defaults to checked fields, and checks limits that depend on the prompt's
    length.

    Args:
        defaults: the model's, which take precedence over those of inference.proto.
        max_default_tokens: bounds a max_tokens that comes from defaults.
        cuts_max_tokens: True if a max_tokens beyond the window is cut, by the scheduler for its
            own window, too.
        encoded: the tokens of those fields that are texts.
    """
    caps = (max_default_tokens, defaults.fields().get("max_tokens"))
    may_cut = cuts_max_tokens or "max_tokens" not in fields
    max_tokens = _resolve_max_tokens(fields, num_prompt_tokens, model, caps, may_cut=may_cut)
    fields = with_defaults(fields, defaults)
    n, best_of, num_logprobs = fields.get("n", 1), fields.get("best_of"), fields.get("logprobs")
    if fields.get("logprob_token_ids"):
        num_logprobs = 0  # the listed tokens replace the likeliest ones
    hides_logprobs = num_logprobs is None and (best_of or n) > n
    return GenerationParams(
        sampling=_resolve_sampling(
            fields,
            model,
            max_tokens=max_tokens,
            num_logprobs=0 if hides_logprobs else num_logprobs,
            bad_words=encoded.bad_words,
        ),
        max_tokens=max_tokens,
        max_tokens_is_default=may_cut,
        stop=tuple(fields.get("stop", ())),
        include_stop_str_in_output=fields.get("include_stop_str_in_output", False),
        ignore_eos=fields.get("ignore_eos", False),
        n=n,
        best_of=best_of,
        hides_logprobs=hides_logprobs,
        beam_search=beam_search(fields),
        skip_special_tokens=fields.get("skip_special_tokens", True),
        speculation=fields.get("speculation", True),
        prediction=encoded.prediction,
    )


def _resolve_sampling(
    fields: Mapping[str, Any],
    model: ServedModel,
    *,
    max_tokens: int,
    num_logprobs: int | None,
    bad_words: tuple[tuple[int, ...], ...],
) -> SamplingParams:
    min_tokens = fields.get("min_tokens", 0)
    if min_tokens > max_tokens:
        allowed = f"at most max_tokens, here {max_tokens}"
        raise InvalidArgument("sampling_params.min_tokens", min_tokens, allowed)
    numbers = {name: value for name, value in fields.items() if name in LIMITS}
    numbers.setdefault("seed", random.getrandbits(64))
    if numbers["temperature"] < GREEDY_BELOW:
        numbers["temperature"] = 0.0
    if numbers["top_k"] >= model.vocab_size:
        numbers["top_k"] = 0
    eos_token_ids = () if fields.get("ignore_eos", False) else model.eos_token_ids
    return SamplingParams(
        **numbers,
        stop_token_ids=tuple(dict.fromkeys((*fields.get("stop_token_ids", ()), *eos_token_ids))),
        logit_bias=tuple(fields.get("logit_bias", ())),
        allowed_token_ids=tuple(fields.get("allowed_token_ids", ())),
        bad_words=bad_words,
        structured_output=fields.get("structured_output"),
        grammar_cost=fields.get("grammar_cost", UNMEASURED),
        constraint_scope=fields.get("constraint_scope", WHOLE),
        num_prompt_logprobs=_at_most(fields.get("prompt_logprobs"), model.vocab_size),
        num_logprobs=_at_most(num_logprobs, model.vocab_size),
        logprob_token_ids=tuple(fields.get("logprob_token_ids", ())),
    )


def _resolve_max_tokens(
    fields: Mapping[str, Any],
    num_prompt_tokens: int,
    model: ServedModel,
    caps: Iterable[int | None],
    *,
    may_cut: bool,
) -> int:
    room = model.max_model_len - num_prompt_tokens
    asked = (fields["max_tokens"],) if "max_tokens" in fields else caps
    max_tokens = min((room, *(cap for cap in asked if cap is not None)))
    if not may_cut and max_tokens < fields["max_tokens"]:
        raise ContextOverflow(
            "sampling_params.max_tokens",
            fields["max_tokens"],
            f"at most {room}, as the prompt has {counted(num_prompt_tokens, 'token')}",
            window=model.max_model_len,
        )
    return max_tokens


def _at_most(value: int | None, limit: int) -> int | None:
    return None if value is None else min(value, limit)

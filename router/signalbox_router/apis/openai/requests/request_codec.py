"""Converts OpenAI's requests to those of inference.v1, and so to `ApiRequest`.

The HTTP API has no semantics of its own: the same code as for gRPC decides what is served or
refused.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from signalbox_contract.errors import InvalidArgument
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference import chat_codec, generate_codec
from signalbox_router.apis.openai.requests.chat_types import ChatBody
from signalbox_router.apis.openai.requests.conversation_codec import (
    chat_request,
    set_budget,
    set_tool_choice,
    with_allowed_tools,
    with_custom_tools,
)
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.requests.field_setters import extend_field, set_field
from signalbox_router.apis.openai.requests.prompt_cache_codec import set_session
from signalbox_router.apis.openai.requests.request_totals import check_lengths, check_products
from signalbox_router.apis.openai.requests.structured_output_codec import set_structured_output
from signalbox_router.apis.openai.requests.types import CompletionBody, GenerationBody
from signalbox_router.params.params_validation import check_truncation
from signalbox_router.params.token_validation import allowed_ids, check_num_allowed, check_token_ids
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.requests.api_request import ApiRequest, PromptText, PromptTokens

MAX_PROMPTS = 1024
Prompt = str | list[int]

_CONVERTED = ("top_k", "seed")
"""Numbers that the HTTP API writes in another way."""
_SAME_NAME = tuple(
    one.name
    for one in pb.SamplingParams.DESCRIPTOR.fields
    if one.has_presence and one.message_type is None  # neither a list nor a message
    if one.name in GenerationBody.model_fields and one.name not in _CONVERTED
)
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_ID_LISTS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")


def prompts_of(body: CompletionBody) -> list[Prompt]:
    """Returns the list of prompts, for each form that the field may have."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest("prompt: it is empty", "prompt")
    prompts: Sequence[Any] = [prompt] if isinstance(prompt[0], int) else prompt
    if len(prompts) > MAX_PROMPTS:
        raise BadRequest(f"prompt: {len(prompts)} prompts; at most {MAX_PROMPTS}", "prompt")
    return list(prompts)


def completion_api_request(
    body: CompletionBody,
    prompts: Sequence[Prompt],
    request_ids: Iterable[str],
    *,
    model: ServedModel,
) -> list[ApiRequest]:
    """Returns a request for each prompt; their common fields are converted once."""
    check_products(body, len(prompts))
    if body.receipt and len(prompts) > 1:
        raise BadRequest("receipt: it is of one prompt; send each in a request", "receipt")
    _check_logprob_token_ids(body)
    request = pb.GenerateRequest(text="")
    set_field(request, "echo", body.echo or None)
    set_common(request, body, model)
    params = request.sampling_params
    if only_echoes(body):
        set_field(params, "max_tokens", 1)
    elif "max_tokens" in body.model_fields_set:
        set_field(params, "max_tokens", body.max_tokens)
    set_field(params, "logprobs", body.logprobs)
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        set_field(params, "prompt_logprobs", body.logprobs)
    set_truncation(request, body, model)
    common = replace(
        generate_codec.generate_api_request(request),
        max_default_tokens=body.max_tokens,
        truncate_end=body.truncation_side == "right",
    )
    return [
        replace(common, prompt=_prompt(prompt, body, model), request_id=request_id)
        for prompt, request_id in zip(prompts, request_ids, strict=True)
    ]


def _prompt(prompt: Prompt, body: CompletionBody, model: ServedModel) -> PromptText | PromptTokens:
    if isinstance(prompt, str):
        return PromptText(prompt, add_special_tokens=body.add_special_tokens is not False)
    check_token_ids(prompt, field="prompt", model=model)  # before another prompt is computed
    return PromptTokens(prompt)


def only_echoes(body: CompletionBody) -> bool:
    """Returns whether only the prompt's log probabilities are requested.

    Evaluation harnesses send such requests. One token is generated and dropped.
    """
    return bool(body.echo) and body.max_tokens == 0 and not body.stream


def chat_api_request(body: ChatBody, *, request_id: str, model: ServedModel) -> ApiRequest:
    cuts_end = body.truncation_side == "right"
    _check_logprob_token_ids(body)
    request = chat_request(body)
    set_tool_choice(request, body)
    set_budget(request, body)
    request.request_id = request_id
    set_common(request, body, model)
    params = request.sampling_params
    limit = body.max_completion_tokens
    set_field(params, "max_tokens", body.max_tokens if limit is None else limit)
    if body.logprobs:
        set_field(params, "logprobs", body.top_logprobs or 0, param="top_logprobs")
    elif body.top_logprobs:
        raise BadRequest("top_logprobs: it needs logprobs to be true", "top_logprobs")
    if body.prediction is not None:
        set_field(params, "prediction", body.prediction.text)
    set_truncation(request, body, model)
    conversation = with_custom_tools(chat_codec.conversation(request), body)
    conversation = with_allowed_tools(conversation, body)
    api_request = generate_codec.conversation_api_request(request, conversation)
    return replace(api_request, truncate_end=True) if cuts_end else api_request


def set_common(
    request: pb.GenerateRequest | pb.ChatRequest,
    body: GenerationBody,
    model: ServedModel,
) -> None:
    """Sets what does not depend on the kind of prompt."""
    check_lengths(body)
    check_num_allowed(body.allowed_token_ids or (), model)
    request.model = body.model or ""
    set_field(request, "cache_salt", body.cache_salt)
    set_session(request, body)
    set_field(request, "priority", body.priority or None)
    set_field(request, "stream_interval", body.stream_interval)
    request.receipt = bool(body.receipt)
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options: it needs stream to be true", "stream_options")
    if not body.stream:
        request.output_kind = pb.OUTPUT_KIND_FINAL_ONLY
    if body.stream and body.prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs: they are not streamed", "prompt_logprobs")
    params = request.sampling_params
    for name in _SAME_NAME:
        set_field(params, name, getattr(body, name))
    for name in _ID_LISTS:
        token_ids = getattr(body, name) or ()
        check_token_ids(token_ids, field=name, model=model)
        extend_field(params, name, token_ids)
    extend_field(params, "bad_words", body.bad_words or ())
    extend_field(params, "stop", [body.stop] if isinstance(body.stop, str) else body.stop or ())
    set_field(params, "top_k", 0 if body.top_k == -1 else body.top_k)  # -1 is all, to vLLM
    if body.seed is not None:
        is_signed = -(1 << 63) <= body.seed < 0
        set_field(params, "seed", body.seed + (1 << 64) if is_signed else body.seed)
    params.logit_bias.extend(_logit_biases(body.logit_bias or {}, model))
    _set_beam_search(params, body)
    set_structured_output(params, body)


def _check_logprob_token_ids(body: CompletionBody | ChatBody) -> None:
    """Refuses `logprob_token_ids` in a request whose answer would not show them."""
    name = "logprob_token_ids"
    if not body.logprob_token_ids:
        return
    if body.logprobs is None or body.logprobs is False:
        raise BadRequest(f"{name}: it needs logprobs to be set", name)
    if isinstance(body, CompletionBody) and only_echoes(body):
        raise BadRequest(f"{name}: no tokens are generated", name)


def set_truncation(
    request: pb.GenerateRequest | pb.ChatRequest, body: GenerationBody, model: ServedModel
) -> None:
    """Sets the truncation; -1, as in vLLM, keeps the tokens that leave room for max_tokens."""
    length = body.truncate_prompt_tokens
    check_truncation(length, model, or_all=True)
    if length == -1:
        asked = request.sampling_params.max_tokens or getattr(body, "max_tokens", None)
        length = max(1, model.window - (asked or 1))
    set_field(request, "truncate_prompt_tokens", length)


def _set_beam_search(params: pb.SamplingParams, body: GenerationBody) -> None:
    """Sets beam search in vLLM's form: its width is best_of or n."""
    if not body.use_beam_search:
        for name, default in (("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(body, name) not in (None, default):
                raise BadRequest(f"{name}: it needs use_beam_search", name)
        return
    set_field(params.beam_search, "width", body.best_of or body.n or 1, param="n")
    params.ClearField("best_of")
    set_field(params.beam_search, "length_penalty", body.length_penalty)
    set_field(params.beam_search, "early_stopping", body.early_stopping)


def _logit_biases(biases: Mapping[str, float], model: ServedModel) -> list[pb.LogitBias]:
    """Raises InvalidArgument with every key that is no token id, or with an id outside the
    vocabulary."""
    strange = [token for token in biases if not _INTEGER.fullmatch(token)]
    if strange:
        raise InvalidArgument("logit_bias", strange, f"keys that are {allowed_ids(model)}")
    token_ids = list(map(int, biases))
    check_token_ids(token_ids, field="logit_bias", model=model)
    pairs = zip(token_ids, biases.values(), strict=True)
    return [pb.LogitBias(token_id=token_id, bias=bias) for token_id, bias in pairs]

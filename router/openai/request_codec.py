"""OpenAI's requests put into the words of inference.v1, and so into what the router takes.

The HTTP API has no semantics of its own: whatever the public contract serves, or refuses, is served
or refused here by the same code.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from google.protobuf import struct_pb2

from protos.inference.v1 import inference_pb2 as pb
from router import codec
from router.admission import Asked
from router.openai.chat_types import ChatBody
from router.openai.conversation_codec import chat_request, set_tool_choice
from router.openai.errors import BadRequest
from router.openai.fields import extend_field, set_field
from router.openai.structured_output_codec import set_structured_output
from router.openai.types import CompletionBody, GenerationBody
from rpc.errors import InvalidArgument

MAX_PROMPTS = 1024
Prompt = str | list[int]

_SAME_NAME = (
    "temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "ignore_eos", "include_stop_str_in_output",
    "skip_special_tokens", "best_of", "n", "prompt_logprobs",
)  # fmt: skip
_LISTS = ("stop_token_ids", "allowed_token_ids", "bad_words", "logprob_token_ids")


def prompts_of(body: CompletionBody) -> list[Prompt]:
    """Returns one entry for each prompt, whatever the form."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest("prompt: it is empty", "prompt")
    prompts: Sequence[Any] = [prompt] if isinstance(prompt[0], int) else prompt
    if len(prompts) > MAX_PROMPTS:
        raise BadRequest(f"prompt: {len(prompts)} prompts; at most {MAX_PROMPTS}", "prompt")
    return list(prompts)


def asked_to_complete(
    body: CompletionBody, prompt: Prompt, *, request_id: str, max_model_len: int
) -> Asked:
    request = pb.GenerateRequest()
    if isinstance(prompt, str):
        request.text = prompt
    else:
        extend_field(request.token_ids, "ids", prompt, param="prompt")
    set_field(request, "echo", body.echo or None)
    set_field(request, "add_special_tokens", body.add_special_tokens)
    _set_common(request, body, request_id)
    params = request.sampling_params
    if only_echoes(body):
        set_field(params, "max_tokens", 1)
    elif "max_tokens" in body.model_fields_set:
        set_field(params, "max_tokens", body.max_tokens)
    set_field(params, "logprobs", body.logprobs)
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        set_field(params, "prompt_logprobs", body.logprobs)
    _set_truncation(request, body, max_model_len)
    return replace(codec.asked_to_generate(request), max_default_tokens=body.max_tokens)


def only_echoes(body: CompletionBody) -> bool:
    """Returns whether the prompt's log probabilities are all that is wanted.

    Evaluation harnesses ask so. A token is generated, and dropped.
    """
    return bool(body.echo) and body.max_tokens == 0 and not body.stream


def asked_to_chat(body: ChatBody, *, request_id: str, max_model_len: int) -> Asked:
    request = chat_request(body)
    set_tool_choice(request, body)
    if body.reasoning_effort is not None:
        effort = struct_pb2.Value(string_value=body.reasoning_effort)
        request.chat_template_kwargs["reasoning_effort"].CopyFrom(effort)
    _set_common(request, body, request_id)
    params = request.sampling_params
    limit = body.max_completion_tokens
    set_field(params, "max_tokens", body.max_tokens if limit is None else limit)
    if body.logprobs:
        set_field(params, "logprobs", body.top_logprobs or 0, param="top_logprobs")
    elif body.top_logprobs is not None:
        raise BadRequest("top_logprobs: it needs logprobs to be true", "top_logprobs")
    _set_truncation(request, body, max_model_len)
    return codec.asked_to_chat(request)


def _set_common(
    request: pb.GenerateRequest | pb.ChatRequest, body: CompletionBody | ChatBody, request_id: str
) -> None:
    request.request_id = request_id
    request.model = body.model or ""
    set_field(request, "cache_salt", body.cache_salt)
    set_field(request, "priority", body.priority or None)
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options: it needs stream to be true", "stream_options")
    if not body.stream:
        request.output_kind = pb.OUTPUT_KIND_FINAL_ONLY
    if body.stream and body.prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs: they are not streamed", "prompt_logprobs")
    _check_logprob_token_ids(body)
    params = request.sampling_params
    for name in _SAME_NAME:
        set_field(params, name, getattr(body, name))
    for name in _LISTS:
        extend_field(params, name, getattr(body, name) or ())
    extend_field(params, "stop", [body.stop] if isinstance(body.stop, str) else body.stop or ())
    set_field(params, "top_k", 0 if body.top_k == -1 else body.top_k)  # -1 is all, to vLLM
    if body.seed is not None:
        is_signed = -(1 << 63) <= body.seed < 0
        set_field(params, "seed", body.seed + (1 << 64) if is_signed else body.seed)
    for token, bias in (body.logit_bias or {}).items():
        params.logit_bias.append(_logit_bias(token, bias))
    _set_beam_search(params, body)
    set_structured_output(params, body)


def _check_logprob_token_ids(body: CompletionBody | ChatBody) -> None:
    """Refuses them in a request whose answer would not show them."""
    name = "logprob_token_ids"
    if not body.logprob_token_ids:
        return
    if body.logprobs is None or body.logprobs is False:
        raise BadRequest(f"{name}: it needs logprobs to be set", name)
    if isinstance(body, CompletionBody) and only_echoes(body):
        raise BadRequest(f"{name}: no tokens are generated", name)


def _set_truncation(
    request: pb.GenerateRequest | pb.ChatRequest, body: GenerationBody, max_model_len: int
) -> None:
    """-1 is vLLM's way to keep what leaves room for max_tokens."""
    length = body.truncate_prompt_tokens
    if length == -1:
        asked = request.sampling_params.max_tokens or getattr(body, "max_tokens", None)
        length = max(1, max_model_len - (asked or 1))
    set_field(request, "truncate_prompt_tokens", length)


def _set_beam_search(params: pb.SamplingParams, body: GenerationBody) -> None:
    """Vllm's way: as wide as best_of or n."""
    if not body.use_beam_search:
        for name in ("length_penalty", "early_stopping"):
            if getattr(body, name) is not None:
                raise BadRequest(f"{name}: it needs use_beam_search", name)
        return
    set_field(params.beam_search, "width", body.best_of or body.n or 1, param="n")
    params.ClearField("best_of")
    set_field(params.beam_search, "length_penalty", body.length_penalty)
    set_field(params.beam_search, "early_stopping", body.early_stopping)


def _logit_bias(token: str, bias: float) -> pb.LogitBias:
    try:
        return pb.LogitBias(token_id=int(token), bias=bias)
    except ValueError:
        raise InvalidArgument("logit_bias", token, "token ids as keys") from None

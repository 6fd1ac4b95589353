"""OpenAI's requests put into the words of inference.v1, and so into what the router takes.

The HTTP API has no semantics of its own: whatever the public contract serves, or refuses, is served
or refused here by the same code.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf import json_format, struct_pb2

from protos.inference.v1 import inference_pb2 as pb
from router import chat_codec, codec
from router.admission import Asked
from router.conversation import Conversation
from router.openai.errors import BadRequest
from router.openai.types import (
    ChatBody,
    ChatMessage,
    CompletionBody,
    ConversationBody,
    GenerationBody,
    NamedToolChoice,
    ResponseFormat,
    StructuredOutputs,
    Tool,
)
from router.validation import RANGES, REQUEST_RANGES
from rpc.errors import InvalidArgument

MAX_PROMPTS = 1024
Prompt = str | list[int]

_SAME_NAME = (
    "temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "ignore_eos", "include_stop_str_in_output",
    "skip_special_tokens", "best_of", "n", "prompt_logprobs",
)  # fmt: skip
_LISTS = ("stop_token_ids", "allowed_token_ids", "bad_words")
_ROLES = {
    "system": pb.CHAT_ROLE_SYSTEM,
    "developer": pb.CHAT_ROLE_SYSTEM,
    "user": pb.CHAT_ROLE_USER,
    "assistant": pb.CHAT_ROLE_ASSISTANT,
    "tool": pb.CHAT_ROLE_TOOL,
}
_MODES = {
    "auto": pb.TOOL_CHOICE_MODE_AUTO,
    "none": pb.TOOL_CHOICE_MODE_NONE,
    "required": pb.TOOL_CHOICE_MODE_REQUIRED,
}


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
        _extend(request.token_ids, "ids", prompt, param="prompt")
    _set(request, "echo", body.echo or None)
    _set(request, "add_special_tokens", body.add_special_tokens)
    _set_common(request, body, request_id)
    params = request.sampling_params
    _set(params, "max_tokens", 1 if only_echoes(body) else body.max_tokens)
    _set(params, "logprobs", body.logprobs)
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        _set(params, "prompt_logprobs", body.logprobs)
    _set_truncation(request, body, max_model_len)
    return codec.asked_to_generate(request)


def only_echoes(body: CompletionBody) -> bool:
    """Returns whether the prompt's log probabilities are all that is wanted.

    Evaluation harnesses ask so. A token is generated, and dropped.
    """
    return bool(body.echo) and body.max_tokens == 0 and not body.stream


def asked_to_chat(body: ChatBody, *, request_id: str, max_model_len: int) -> Asked:
    request = _chat_request(body)
    if body.tool_choice is not None and body.tools:
        request.tool_choice.CopyFrom(_tool_choice(body.tool_choice))
    elif body.tool_choice not in (None, "none", "auto"):
        raise BadRequest("tool_choice: there are no tools", "tool_choice")
    _set(request, "parallel_tool_calls", body.parallel_tool_calls)
    if body.reasoning_effort is not None:
        effort = struct_pb2.Value(string_value=body.reasoning_effort)
        request.chat_template_kwargs["reasoning_effort"].CopyFrom(effort)
    _set_common(request, body, request_id)
    params = request.sampling_params
    limit = body.max_completion_tokens
    _set(params, "max_tokens", body.max_tokens if limit is None else limit)
    if body.logprobs:
        _set(params, "logprobs", body.top_logprobs or 0, param="top_logprobs")
    elif body.top_logprobs is not None:
        raise BadRequest("top_logprobs: it needs logprobs to be true", "top_logprobs")
    _set_truncation(request, body, max_model_len)
    return codec.asked_to_chat(request)


def conversation_of(body: ConversationBody) -> Conversation:
    """Returns what is rendered, for a client that only wants to know the tokens."""
    conversation = chat_codec.conversation(_chat_request(body))
    conversation.check()
    return conversation


def _chat_request(body: ConversationBody) -> pb.ChatRequest:
    request = pb.ChatRequest(
        messages=[_message(i, message) for i, message in enumerate(body.messages or ())],
        tools=[_tool(tool) for tool in body.tools or ()],
    )
    for name in ("chat_template", "add_generation_prompt", "continue_final_message"):
        _set(request, name, getattr(body, name))
    if body.add_generation_prompt and not body.continue_final_message:
        request.ClearField("continue_final_message")
    for name, value in (body.chat_template_kwargs or {}).items():
        request.chat_template_kwargs[name].CopyFrom(_value(value))
    return request


def _set_common(
    request: pb.GenerateRequest | pb.ChatRequest, body: GenerationBody, request_id: str
) -> None:
    request.request_id = request_id
    request.model = body.model or ""
    _set(request, "cache_salt", body.cache_salt)
    _set(request, "priority", body.priority or None)
    if not body.stream:
        request.output_kind = pb.OUTPUT_KIND_FINAL_ONLY
    if body.stream and body.prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs: they are not streamed", "prompt_logprobs")
    params = request.sampling_params
    for name in _SAME_NAME:
        _set(params, name, getattr(body, name))
    for name in _LISTS:
        _extend(params, name, getattr(body, name) or ())
    _extend(params, "stop", [body.stop] if isinstance(body.stop, str) else body.stop or ())
    if body.top_k is not None and body.top_k != -1:  # vLLM's way to say all
        _set(params, "top_k", body.top_k)
    if body.seed is not None:
        is_signed = -(1 << 63) <= body.seed < 0
        _set(params, "seed", body.seed + (1 << 64) if is_signed else body.seed)
    for token, bias in (body.logit_bias or {}).items():
        params.logit_bias.append(_logit_bias(token, bias))
    _set_beam_search(params, body)
    _set_structured_output(params, body)


def _set_truncation(
    request: pb.GenerateRequest | pb.ChatRequest, body: GenerationBody, max_model_len: int
) -> None:
    """-1 is vLLM's way to keep what leaves room for max_tokens."""
    length = body.truncate_prompt_tokens
    if length == -1:
        length = max(1, max_model_len - (request.sampling_params.max_tokens or 1))
    _set(request, "truncate_prompt_tokens", length)


def _set_beam_search(params: pb.SamplingParams, body: GenerationBody) -> None:
    """Vllm's way: as wide as best_of or n."""
    if not body.use_beam_search:
        for name in ("length_penalty", "early_stopping"):
            if getattr(body, name) is not None:
                raise BadRequest(f"{name}: it needs use_beam_search", name)
        return
    _set(params.beam_search, "width", body.best_of or body.n or 1, param="n")
    params.ClearField("best_of")
    _set(params.beam_search, "length_penalty", body.length_penalty)
    _set(params.beam_search, "early_stopping", body.early_stopping)


def _set_structured_output(params: pb.SamplingParams, body: GenerationBody) -> None:
    asked = [
        *_of_format(body.response_format),
        *_of_vllm(body.structured_outputs),
        *(("json_schema", schema) for schema in [body.guided_json] if schema is not None),
        *(("regex", regex) for regex in [body.guided_regex] if regex is not None),
        *(("grammar", grammar) for grammar in [body.guided_grammar] if grammar is not None),
        *(("choice", choice) for choice in [body.guided_choice] if choice is not None),
    ]
    if len(asked) > 1:
        raise BadRequest("response_format: more than one structure is asked for", "response_format")
    for kind, value in asked:
        match kind:
            case "json_schema":
                text = value if isinstance(value, str) else json.dumps(value)
                params.structured_output.json_schema = text
            case "json_object":
                params.structured_output.json_object.SetInParent()
            case "choice":
                params.structured_output.choice.choices.extend(value)
            case _:
                _set(params.structured_output, kind, value)


def _of_format(format_: ResponseFormat | None) -> Iterable[tuple[str, Any]]:
    if format_ is None or format_.type == "text":
        return
    if format_.type == "json_object":
        yield "json_object", None
    elif format_.json_schema is None or format_.json_schema.schema_ is None:
        param = "response_format.json_schema"
        raise BadRequest(f"{param}: it must hold a schema", param)
    else:
        yield "json_schema", format_.json_schema.schema_


def _of_vllm(outputs: StructuredOutputs | None) -> Iterable[tuple[str, Any]]:
    if outputs is None:
        return
    for kind, value in (
        ("json_schema", outputs.json_),
        ("json_object", outputs.json_object),
        ("regex", outputs.regex),
        ("grammar", outputs.grammar),
        ("choice", outputs.choice),
    ):
        if value is not None:
            yield kind, value


def _message(position: int, message: ChatMessage) -> pb.ChatMessage:
    content = message.content
    if content is None:
        texts = []
    else:
        texts = [content] if isinstance(content, str) else [part.text for part in content]
    if not texts and not message.tool_calls:
        param = f"messages[{position}].content"
        raise BadRequest(f"{param}: it is missing", param)
    return pb.ChatMessage(
        role=_ROLES[message.role],
        content=[pb.ContentPart(text=text) for text in texts],
        tool_calls=[
            pb.ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls or ()
        ],
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
    )


def _tool(tool: Tool) -> pb.Tool:
    function = tool.function
    return pb.Tool(
        name=function.name,
        description=function.description or "",
        parameters="" if function.parameters is None else json.dumps(function.parameters),
    )


def _tool_choice(choice: str | NamedToolChoice) -> pb.ToolChoice:
    if isinstance(choice, NamedToolChoice):
        return pb.ToolChoice(tool=choice.function.name)
    return pb.ToolChoice(mode=_MODES[choice])


def _value(value: Any) -> struct_pb2.Value:
    try:
        return json_format.ParseDict(value, struct_pb2.Value())
    except (json_format.ParseError, RecursionError) as error:
        raise BadRequest(f"chat_template_kwargs: {error}", "chat_template_kwargs") from None


def _logit_bias(token: str, bias: float) -> pb.LogitBias:
    try:
        return pb.LogitBias(token_id=int(token), bias=bias)
    except ValueError:
        raise InvalidArgument("logit_bias", token, "token ids as keys") from None


def _set(message: Any, name: str, value: Any, *, param: str | None = None) -> None:
    """Sets a field unless the value is None; what its type cannot hold is a client's error."""
    if value is None:
        return
    try:
        setattr(message, name, value)
    except (ValueError, TypeError, OverflowError):
        raise _out_of_range(param or name, value) from None


def _extend(message: Any, name: str, values: Iterable[Any], *, param: str | None = None) -> None:
    for value in values:
        try:
            getattr(message, name).append(value)
        except (ValueError, TypeError, OverflowError):
            raise _out_of_range(param or name, value) from None


def _out_of_range(param: str, value: object) -> InvalidArgument:
    allowed = {**RANGES, **REQUEST_RANGES}
    text = allowed[param].text if param in allowed else "what the field's type holds, from 0 on"
    return InvalidArgument(param, value, text)

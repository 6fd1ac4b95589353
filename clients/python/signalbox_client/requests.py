"""Converts plain values to messages of inference.v1. An unknown field raises ValueError."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from signalbox_protos.inference.v1 import inference_pb2 as pb

Prompt = str | Sequence[int]
"""Text, or token ids."""
Messages = str | Sequence[Mapping[str, str | None]]
"""The user's message, or messages like {"role": "user", "content": "Hello"}. The assistant's may
have "reasoning", and None for content."""

_M = TypeVar("_M", bound=Message)
_MAX_SHOWN_CHARS = 60

_ROLES = {
    "system": pb.CHAT_ROLE_SYSTEM,
    "user": pb.CHAT_ROLE_USER,
    "assistant": pb.CHAT_ROLE_ASSISTANT,
}


def generate_request(prompt: Prompt, options: Mapping[str, Any]) -> pb.GenerateRequest:
    fields, sampling = _split(pb.GenerateRequest, options)
    if isinstance(prompt, str):
        fields["text"] = prompt
    else:
        fields["token_ids"] = _make(pb.TokenIds, {"ids": prompt})
    return _make(pb.GenerateRequest, {**fields, "sampling_params": sampling})


def chat_request(messages: Messages, options: Mapping[str, Any]) -> pb.ChatRequest:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    fields, sampling = _split(pb.ChatRequest, options)
    turns = [_turn(message) for message in messages]
    return _make(pb.ChatRequest, {**fields, "messages": turns, "sampling_params": sampling})


def tokenize_request(text: str, *, add_special_tokens: bool, model: str) -> pb.TokenizeRequest:
    fields = {
        "text": text,
        "add_special_tokens": add_special_tokens,
        "return_texts": True,
        "model": model,
    }
    return _make(pb.TokenizeRequest, fields)


def embed_request(
    texts: Sequence[str],
    *,
    dimensions: int | None,
    prompt_name: str | None,
    truncate: bool,
    model: str,
) -> pb.EmbedRequest:
    fields = {"dimensions": dimensions, "prompt_name": prompt_name, "model": model}
    request = _make(
        pb.EmbedRequest, {name: value for name, value in fields.items() if value is not None}
    )
    request.inputs.extend(pb.PoolingInput(text=text) for text in texts)
    if truncate:
        request.pooling_params.truncate_prompt_tokens = -1
    return request


def detokenize_request(
    token_ids: Sequence[int], *, skip_special_tokens: bool, model: str
) -> pb.DetokenizeRequest:
    fields = {"token_ids": token_ids, "skip_special_tokens": skip_special_tokens, "model": model}
    return _make(pb.DetokenizeRequest, fields)


def _turn(message: Mapping[str, str | None]) -> pb.ChatMessage:
    fields = {name: value for name, value in message.items() if value is not None}
    role, content = _ROLES.get(fields.pop("role", "")), fields.pop("content", None)
    if role is None or (content is None and role != pb.CHAT_ROLE_ASSISTANT):
        raise ValueError(f"a message needs a content and a role, one of {', '.join(_ROLES)}")
    if unknown := fields.keys() - {"name", "reasoning"}:
        raise ValueError(f"a message has no {min(unknown)!r} here")
    parts = [] if content is None else [_make(pb.ContentPart, {"text": content})]
    return _make(pb.ChatMessage, {"role": role, "content": parts, **fields})


def _split(
    kind: type[pb.GenerateRequest] | type[pb.ChatRequest], options: Mapping[str, Any]
) -> tuple[dict[str, Any], pb.SamplingParams]:
    """Separates the fields of the request from those of its sampling_params."""
    sampling = dict(options)
    fields = {
        name: sampling.pop(name) for name in options if name in kind.DESCRIPTOR.fields_by_name
    }
    if (schema := sampling.pop("json_schema", None)) is not None:
        sampling["structured_output"] = pb.StructuredOutput(json_schema=json.dumps(schema))
    return fields, _make(pb.SamplingParams, sampling)


def _make(kind: type[_M], fields: Mapping[str, Any]) -> _M:
    """Returns a message. Raises ValueError with the field's name; protobuf often names only the
    value.

    The router refuses values that the field's type can hold but that are not allowed.
    """
    try:
        return kind(**fields)
    except (ValueError, TypeError):
        for name, value in fields.items():
            _check(kind, name, value)
        raise


def _check(kind: type[Message], name: str, value: Any) -> None:
    if name not in kind.DESCRIPTOR.fields_by_name:
        raise ValueError(
            f"there is no option {name!r}, neither in the request nor in SamplingParams"
        )
    try:
        kind(**{name: value})
    except UnicodeEncodeError:
        raise ValueError(f"{name}: it is no valid Unicode; the text was not UTF-8") from None
    except (ValueError, TypeError) as error:
        shown = repr(value)
        shown = shown if len(shown) <= _MAX_SHOWN_CHARS else shown[:_MAX_SHOWN_CHARS] + "..."
        raise ValueError(f"{name}: its type does not hold {shown} ({error})") from None

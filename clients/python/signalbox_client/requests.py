"""Plain values to messages of inference.v1. A field that there is not is a ValueError."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from protos.inference.v1 import inference_pb2 as pb

Prompt = str | Sequence[int]
"""Text, or token ids."""
Messages = str | Sequence[Mapping[str, str]]
"""What the user says, or turns like {"role": "user", "content": "Hello"}."""

_ROLES = {
    "system": pb.CHAT_ROLE_SYSTEM,
    "user": pb.CHAT_ROLE_USER,
    "assistant": pb.CHAT_ROLE_ASSISTANT,
}


def generate_request(prompt: Prompt, options: Mapping[str, Any]) -> pb.GenerateRequest:
    fields, sampling = _split(pb.GenerateRequest, options)
    request = pb.GenerateRequest(sampling_params=sampling, **fields)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return request


def chat_request(messages: Messages, options: Mapping[str, Any]) -> pb.ChatRequest:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    fields, sampling = _split(pb.ChatRequest, options)
    turns = [_turn(message) for message in messages]
    return pb.ChatRequest(messages=turns, sampling_params=sampling, **fields)


def tokenize_request(text: str, *, add_special_tokens: bool) -> pb.TokenizeRequest:
    return pb.TokenizeRequest(text=text, add_special_tokens=add_special_tokens, return_texts=True)


def detokenize_request(
    token_ids: Sequence[int], *, skip_special_tokens: bool
) -> pb.DetokenizeRequest:
    return pb.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)


def _turn(message: Mapping[str, str]) -> pb.ChatMessage:
    role = _ROLES.get(message.get("role", ""))
    if role is None or "content" not in message:
        raise ValueError(f"a message needs a content and a role, one of {', '.join(_ROLES)}")
    return pb.ChatMessage(role=role, content=[pb.ContentPart(text=message["content"])])


def _split(
    kind: type[pb.GenerateRequest] | type[pb.ChatRequest], options: Mapping[str, Any]
) -> tuple[dict[str, Any], pb.SamplingParams]:
    """Tells fields of the request from those of its sampling_params."""
    sampling = dict(options)
    fields = {
        name: sampling.pop(name) for name in options if name in kind.DESCRIPTOR.fields_by_name
    }
    if (schema := sampling.pop("json_schema", None)) is not None:
        sampling["structured_output"] = pb.StructuredOutput(json_schema=json.dumps(schema))
    return fields, pb.SamplingParams(**sampling)

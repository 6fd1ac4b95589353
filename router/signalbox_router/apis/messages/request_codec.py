"""Converts bodies of the Messages API to `ApiRequest`, by way of inference.v1 as chats are."""

import json
from dataclasses import replace
from typing import Any

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.agents import ReadConversation
from signalbox_router.apis.inference import generate_codec
from signalbox_router.apis.messages.conversation_codec import asked_format
from signalbox_router.apis.messages.types import MessagesBody
from signalbox_router.apis.openai.requests.field_setters import (
    UINT32_MAX,
    extend_field,
    set_field,
)
from signalbox_router.apis.openai.requests.prompt_cache_codec import seconds_of
from signalbox_router.params.token_validation import check_counts
from signalbox_router.requests.api_request import ApiRequest, PrefixQuery
from signalbox_router.requests.session_key import name_in_user_id

_SAME_NAME = ("temperature", "top_p", "top_k")
_DEFAULT_TTL = "5m"
"""Time of a mark without one, by the API."""


def prefix_ttl_s(body: MessagesBody) -> int:
    """Returns the longest time of the marks for the prompt cache, in seconds; 0 without any.

    Clients mark the ends of what later requests repeat, which are the last tool, the system prompt
    and the last message. Marks elsewhere are not looked for, as a conversation may have thousands
    of blocks.
    """
    parts: list[Any] = [body, *(body.tools or ())[-1:]]
    for content in (body.system, *(message.content for message in body.messages[-1:])):
        if isinstance(content, list):
            parts += content
    marks = [getattr(part, "cache_control", None) for part in parts]
    times = [seconds_of(mark.ttl or _DEFAULT_TTL) for mark in marks if mark is not None]
    return max(times, default=0)


def api_request(
    body: MessagesBody,
    read: ReadConversation,
    *,
    request_id: str,
    answer_id: str = "",
    ttl_s: int = 0,
) -> ApiRequest:
    """Returns the request for a body whose conversation was read. Raises BadRequest or
    InvalidArgument.

    Args:
        ttl_s: what `prefix_ttl_s` has returned before the conversation was read.
    """
    request = pb.ChatRequest(request_id=request_id, model=body.model or "")
    if not body.stream:
        request.output_kind = pb.OUTPUT_KIND_FINAL_ONLY
    if body.metadata is not None and body.metadata.user_id:
        request.session = name_in_user_id(body.metadata.user_id)
    if ttl_s:
        request.prefix_ttl.seconds = ttl_s
    params = request.sampling_params
    for name in _SAME_NAME:
        set_field(params, name, getattr(body, name))
    # A prompt that is only computed has to leave room for a token: later requests draw some.
    set_field(params, "max_tokens", min(body.max_tokens or 1, UINT32_MAX))
    check_counts({"stop": len(body.stop_sequences or ())})
    extend_field(params, "stop", body.stop_sequences or ())
    asked = asked_format(body)
    if asked is not None and not body.forces_call:
        params.structured_output.json_schema = json.dumps(asked.schema_)
    converted = generate_codec.conversation_api_request(request, read.conversation)
    delivery = replace(converted.delivery, keeps_order=True)
    query = PrefixQuery(
        answer_id,
        body.diagnostics is not None,
        body.diagnostics.previous_message_id if body.diagnostics else None,
        "messages.{}",
        places=read.places,
    )
    return replace(
        converted,
        cuts_max_tokens=True,
        delivery=delivery,
        prefix_query=query,
        prewarm=not body.max_tokens,
    )

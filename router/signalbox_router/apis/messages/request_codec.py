"""Converts bodies of the Messages API to `ApiRequest`, by way of inference.v1 as chats are."""

import json
from dataclasses import replace

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
from signalbox_router.params.token_validation import check_counts
from signalbox_router.requests.api_request import ApiRequest

_SAME_NAME = ("temperature", "top_p", "top_k")


def api_request(body: MessagesBody, read: ReadConversation, *, request_id: str) -> ApiRequest:
    """Returns the request for a body whose conversation was read. Raises BadRequest or
    InvalidArgument."""
    request = pb.ChatRequest(request_id=request_id, model=body.model or "")
    if not body.stream:
        request.output_kind = pb.OUTPUT_KIND_FINAL_ONLY
    params = request.sampling_params
    for name in _SAME_NAME:
        set_field(params, name, getattr(body, name))
    # A token is drawn, and dropped, where the prompt alone is asked for.
    set_field(params, "max_tokens", min(body.max_tokens or 1, UINT32_MAX))
    check_counts({"stop": len(body.stop_sequences or ())})
    extend_field(params, "stop", body.stop_sequences or ())
    asked = asked_format(body)
    if asked is not None and not body.forces_call:
        params.structured_output.json_schema = json.dumps(asked.schema_)
    converted = generate_codec.conversation_api_request(request, read.conversation)
    delivery = replace(converted.delivery, keeps_order=True)
    return replace(converted, cuts_max_tokens=True, delivery=delivery)

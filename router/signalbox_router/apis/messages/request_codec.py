"""Converts bodies of the Messages API to `ApiRequest`."""

import json
from typing import Any

from signalbox_router.apis.messages.conversation_codec import Read
from signalbox_router.apis.messages.types import MessagesBody
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.params.generation_params import SharedFields
from signalbox_router.parsers.tool_call_schema import forced_schema
from signalbox_router.requests.api_request import ApiRequest
from signalbox_router.requests.output_buffer import Delivery, OutputKind

_SAME_NAME = ("temperature", "top_p", "top_k")


def api_request(body: MessagesBody, read: Read, *, request_id: str) -> ApiRequest:
    """Returns the request for a body whose conversation was read. Raises BadRequest."""
    return ApiRequest(
        prompt=read.conversation,
        request_id=request_id,
        model=body.model or "",
        sampling=_sampling(body, read),
        cuts_max_tokens=True,
        delivery=Delivery(kind=OutputKind.DELTA if body.stream else OutputKind.FINAL_ONLY),
    )


def _sampling(body: MessagesBody, read: Read) -> SharedFields:
    fields = SharedFields(
        {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    )
    # A token is drawn, and dropped, where the prompt alone is asked for.
    fields["max_tokens"] = body.max_tokens or 1
    if body.stop_sequences:
        fields["stop"] = tuple(body.stop_sequences)
    schema = _schema(body, read)
    if schema is not None:
        fields["structured_output"] = ("json_schema", json.dumps(schema))
    return fields


def _schema(body: MessagesBody, read: Read) -> Any:
    """Returns the schema that the answer conforms to; a forced call precedes an output format."""
    asked = body.output_config.format if body.output_config else None
    if asked is not None and body.output_format is not None:
        raise BadRequest("output_format: output_config.format is set, too", "output_format")
    asked = asked or body.output_format
    forced = forced_schema(read.conversation)
    return asked.schema_ if forced is None and asked is not None else forced

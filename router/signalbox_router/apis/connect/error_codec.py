"""Connect's form of errors: JSON with a code's name, a message, and details in protobuf's form."""

import base64
import json
from typing import Any

from google.protobuf import any_pb2, json_format

from signalbox_contract.errors import Code, RpcError
from signalbox_router.apis.openai.requests.errors import http_status
from signalbox_rpc.interceptors.status import status_of


def connect_error(error: RpcError) -> bytes:
    """Returns the body of a call with one answer that fails."""
    return json.dumps(_fields(error), ensure_ascii=False).encode()


def end_of_stream(error: RpcError | None) -> bytes:
    """Returns what follows the messages of a stream."""
    ended = {} if error is None else {"error": _fields(error)}
    return json.dumps(ended, ensure_ascii=False).encode()


def http_status_of(error: RpcError) -> int:
    """Returns the status by Connect's table, which is that of the other APIs but for one code."""
    return 501 if error.code is Code.UNIMPLEMENTED else http_status(error.code)


def _fields(error: RpcError) -> dict[str, Any]:
    status = status_of(error)
    name = "canceled" if error.code is Code.CANCELLED else error.code.name.lower()
    fields: dict[str, Any] = {"code": name, "message": status.message}
    if status.details:
        fields["details"] = [_detail(one) for one in status.details]
    return fields


def _detail(packed: any_pb2.Any) -> dict[str, Any]:
    shown = json_format.MessageToDict(packed)
    del shown["@type"]
    value = base64.b64encode(packed.value).decode().rstrip("=")
    return {"type": packed.TypeName(), "value": value, "debug": shown}

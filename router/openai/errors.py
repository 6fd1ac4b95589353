"""Failures in OpenAI's shape, with the HTTP code that its clients expect.

A field that is not served is a 400: SDKs repeat what is answered with a 5xx.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from pydantic import ValidationError

from router.openai.params import param_of
from router.openai.types import Body
from rpc.errors import ContextOverflow, InvalidArgument, NotFound, RpcError

CLIENT_CLOSED_REQUEST = 499
_STATUS = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.CANCELLED: CLIENT_CLOSED_REQUEST,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNIMPLEMENTED: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_TYPES = {
    400: "invalid_request_error",
    413: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
UNSUPPORTED_CODE = "unsupported_parameter"
_CODES = {
    grpc.StatusCode.UNIMPLEMENTED: UNSUPPORTED_CODE,
    grpc.StatusCode.NOT_FOUND: "model_not_found",
}

CONTEXT_CODE = "context_length_exceeded"
"""Clients look for it, and shorten the prompt."""


class BadRequest(InvalidArgument):
    """A body that cannot be read; the field is named as the client knows it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(param or "body", None, "what is valid")
        self.message = message
        self.param = param


class NotServed(BadRequest):
    """A field that changes answers elsewhere, and that no component here serves."""


class BodyTooLarge(BadRequest):
    """More than the router reads."""


def status_of(error: RpcError) -> int:
    return 413 if isinstance(error, BodyTooLarge) else http_status(error.code)


def http_status(code: grpc.StatusCode) -> int:
    return _STATUS.get(code, 500)


def error_body(error: RpcError, body: Body | None = None) -> dict[str, Any]:
    """Returns the error in OpenAI's shape, of the request with this body."""
    status = status_of(error)
    param = _param(error, body)
    message = error.message
    if isinstance(error, InvalidArgument) and not isinstance(error, BadRequest):
        message = f"{param}: {error.description}"
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(status, "internal_error"),
            "param": param,
            "code": _code(error),
        }
    }


def _code(error: RpcError) -> str | None:
    if isinstance(error, ContextOverflow):
        return CONTEXT_CODE
    if isinstance(error, NotServed):
        return UNSUPPORTED_CODE
    return _CODES.get(error.code)


def error_headers(error: RpcError) -> dict[str, str]:
    """Returns Retry-After, and where waiting is of no use, the word to OpenAI's SDKs not to."""
    retry_after_s: float | None = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        return {"retry-after": str(math.ceil(retry_after_s))}
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return {"x-should-retry": "false"}
    return {}


def unreadable(error: ValidationError, body: bytes) -> BadRequest:
    """Returns what is wrong with a body: of the alternatives of a field, what came furthest."""
    errors = error.errors(include_url=False, include_context=False)
    if errors[0]["type"] == "json_invalid":
        return BadRequest(f"the body is not valid JSON: {errors[0]['msg']}")
    content = json.loads(body)
    places = [_path(one["loc"], content) for one in errors]
    param = max(places, key=_depth)
    found = errors[places.index(param)]
    return BadRequest(f"{param}: {found['msg']}" if param else found["msg"], param)


def _depth(place: str | None) -> int:
    return 0 if place is None else 1 + place.count(".") + place.count("[")


def _param(error: RpcError, body: Body | None) -> str | None:
    if isinstance(error, BadRequest):
        return error.param
    if isinstance(error, NotFound):
        return "model"
    if not isinstance(error, InvalidArgument):
        return None
    return param_of(error.field, body)


def _path(location: Sequence[int | str], value: Any) -> str | None:
    """Returns the place of an error in a body: its location without the names of our types."""
    path = ""
    for i, key in enumerate(location):
        is_last = i == len(location) - 1
        if isinstance(value, Mapping) and (key in value or is_last):
            path += f".{key}" if path else str(key)
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int):
            path += f"[{key}]"
            value = value[key] if key < len(value) else None
    return path or None

"""Errors in OpenAI's shape, with the HTTP codes that its clients expect.

A field that is not served is a 400, because SDKs retry after a 5xx.
"""

import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from signalbox_contract.errors import Code, InvalidArgument, NotFound, Retryable, RpcError
from signalbox_router.apis.openai.requests.error_params import param_of
from signalbox_router.apis.openai.requests.types import Body
from signalbox_router.prompt.chat.length_errors import ContextOverflow
from signalbox_rpc.http.errors import TYPES
from signalbox_rpc.interceptors.status import bounded

CLIENT_CLOSED_REQUEST = 499
_STATUS = {
    Code.OK: 200,
    Code.CANCELLED: CLIENT_CLOSED_REQUEST,
    Code.INVALID_ARGUMENT: 400,
    Code.FAILED_PRECONDITION: 400,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.ABORTED: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
_MESSAGES = {
    "none_required": "Input should be null",
    "list_type": "Input should be a valid array",
    "dict_type": "Input should be an object",
    "model_type": "Input should be an object",
    "union_tag_not_found": "Input should be an object with a type",
}
"""Replacements for pydantic's messages that use Python's terms, by type of error."""
UNSUPPORTED_CODE = "unsupported_parameter"
UNKNOWN_PATH_CODE = "unknown_url"
MEDIA_TYPE_CODE = "unsupported_content_type"
_CODES = {
    Code.UNIMPLEMENTED: UNSUPPORTED_CODE,
    Code.NOT_FOUND: "model_not_found",
}

MAX_PARAM_CHARS = 128
"""Characters of a field's name in an error; a client's long invented name is cut."""
CONTEXT_CODE = "context_length_exceeded"
"""Code that clients look for to shorten the prompt."""


class BadRequest(InvalidArgument):
    """The body cannot be read; the error uses the client's name of the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        param = None if param is None else _cut(param)
        super().__init__(param or "body", None, "what is valid")
        self.message = message
        self.param = param


class NotServed(BadRequest):
    """The field would change the answer, and no component here serves it."""


class NoSuchResponse(NotFound):
    """The store of responses has none of this id for the caller."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


class BodyTooLarge(BadRequest):
    """The body has more bytes than the router reads."""


class UnsupportedMediaType(BadRequest):
    """The body's declared type is not JSON."""


class UnsupportedCoding(UnsupportedMediaType):
    """The body's declared coding is not one that the router decodes."""


class NoSuchRoute(RpcError):
    """The path, or its method, is not served."""

    def __init__(self, message: str, *, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def status_of(error: RpcError) -> int:
    if isinstance(error, NoSuchRoute):
        return error.status
    if isinstance(error, BodyTooLarge):
        return 413
    return 415 if isinstance(error, UnsupportedMediaType) else http_status(error.code)


def http_status(code: Code) -> int:
    return _STATUS.get(code, 500)


def error_body(error: RpcError, body: Body | None = None) -> dict[str, Any]:
    """Returns the error in OpenAI's shape, for a request with this body."""
    status = status_of(error)
    param = _param(error, body)
    message = error.message
    if isinstance(error, InvalidArgument) and not isinstance(error, BadRequest):
        message = f"{param}: {error.description}"
    return {
        "error": {
            "message": bounded(message),
            "type": _type(error, status),
            "param": None if param is None else _cut(param),
            "code": _code(error),
        }
    }


def _type(error: RpcError, status: int) -> str:
    return TYPES[400] if isinstance(error, NoSuchRoute) else TYPES.get(status, "internal_error")


def _code(error: RpcError) -> str | None:
    if isinstance(error, NoSuchRoute):
        return UNKNOWN_PATH_CODE if error.status == HTTPStatus.NOT_FOUND else None
    if isinstance(error, ContextOverflow):
        return CONTEXT_CODE
    if isinstance(error, NotServed):
        return UNSUPPORTED_CODE
    if isinstance(error, UnsupportedMediaType):
        return MEDIA_TYPE_CODE
    if isinstance(error, NoSuchResponse):
        return f"{error.param.removesuffix('_id')}_not_found"
    return _CODES.get(error.code)


def error_headers(error: RpcError) -> dict[str, str]:
    """Returns the headers that say when or how to retry, or stop OpenAI's SDKs from doing so."""
    if isinstance(error, NoSuchRoute):
        return dict(error.headers)
    if isinstance(error, Retryable) and error.retry_after_s is not None:
        return {"retry-after": str(math.ceil(error.retry_after_s))}
    if isinstance(error, UnsupportedCoding):
        return {"accept-encoding": "gzip, identity"}  # RFC 9110, 15.5.16
    if error.code is Code.UNAUTHENTICATED:
        return {"www-authenticate": "Bearer"}  # RFC 9110, 15.5.2
    if error.code is Code.RESOURCE_EXHAUSTED:
        return {"x-should-retry": "false"}
    return {}


def unreadable(
    error: ValidationError, value: Any, *, name: str = "", position: int = 0
) -> BadRequest:
    """Returns the error for an invalid body; of a union's alternatives, those that matched most.

    Args:
        value: the checked value: a body or, with a `name`, some items of the list of that name.
        position: index of the first of these items in the list.
    """
    errors = error.errors(include_url=False)
    paths = [_path(one["loc"], value, is_missing=one["type"] == "missing") for one in errors]
    furthest = max(paths, key=lambda path: (len(path), [key for key in path if type(key) is int]))
    message = _message([one for one, path in zip(errors, paths, strict=True) if path == furthest])
    place = _text(furthest)
    if name:
        place = _in_list(name, position, place)
    return BadRequest(f"{_cut(place)}: {message}" if place else message, place)


def _message(alternatives: Sequence[ErrorDetails]) -> str:
    """Returns what a value should be: one of the alternatives that were tried for it."""
    for one in alternatives:
        if one["type"] == "literal_error" and isinstance(one["input"], str):
            return f"{one['ctx']['expected']} is served, and not {_cut(one['input'])!r}"
        if one["type"] == "union_tag_invalid":
            return f"{one['ctx']['expected_tags']} is served, and not {_cut(one['ctx']['tag'])!r}"
    first, *others = dict.fromkeys(_MESSAGES.get(one["type"], one["msg"]) for one in alternatives)
    return " or ".join([first, *(other.removeprefix("Input should be ") for other in others)])


def _in_list(name: str, position: int, place: str | None) -> str:
    """Returns an error's path in the body: `place` is its path in the items from `position` on."""
    if place is None:
        return name
    index, _, rest = place.removeprefix("[").partition("]")
    return f"{name}[{position + int(index)}]{rest}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_PARAM_CHARS else f"{text[:MAX_PARAM_CHARS]}..."


def _param(error: RpcError, body: Body | None) -> str | None:
    if isinstance(error, BadRequest | NoSuchResponse):
        return error.param
    if isinstance(error, NotFound):
        return "model" if body is None else body.SUBJECT
    if not isinstance(error, InvalidArgument):
        return None
    return param_of(error.field, body)


def _path(location: Sequence[int | str], value: Any, *, is_missing: bool) -> list[int | str]:
    """Returns the keys of an error's place in the body: its location without our types' names.

    Args:
        is_missing: True if the last part of the location is a key that the body lacks.
    """
    path: list[int | str] = []
    for i, key in enumerate(location):
        is_lacking = is_missing and i == len(location) - 1
        if isinstance(value, Mapping) and (key in value or is_lacking):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int):
            value = value[key] if key < len(value) else None
        else:
            continue
        path.append(key)
    return path


def _text(path: Sequence[int | str]) -> str | None:
    """Returns a place as clients write it, such as messages[0].role; None for the whole body."""
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return "".join(parts).removeprefix(".") or None

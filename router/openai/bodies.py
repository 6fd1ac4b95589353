"""Reads requests: their bodies, bounded and checked, and their ids."""

import json
import uuid
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from router import validation
from router.openai.errors import BadRequest, BodyTooLarge, unreadable
from router.openai.types import Body
from router.openai.unknown_fields import IgnoredLog, check_unknown, header_of
from rpc.errors import InvalidArgument

REQUEST_ID_HEADER = "x-request-id"
MAX_KEY_CHARS = 100
MAX_LABEL_CHARS = 96
"""Of a header that become part of an id, which has more parts and bounds of its own."""
B = TypeVar("B", bound=Body)


class BodyReader:
    """Reads bodies of at most `max_bytes`, and decides on fields that the API does not have."""

    def __init__(self, *, max_bytes: int, refuses_unknown: bool) -> None:
        self._max_bytes = max_bytes
        self._refuses_unknown = refuses_unknown
        self._ignored = IgnoredLog()

    async def read(self, request: Request, kind: type[B]) -> B:
        """Keeps the body in the request's state, for errors to name its fields, and there too the
        names of the fields that are ignored.

        Raises BodyTooLarge or BadRequest.
        """
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > self._max_bytes:
                raise BodyTooLarge(f"the body has more than {self._max_bytes} bytes")
        try:
            body = kind.model_validate_json(content)
        except ValidationError as error:
            raise unreadable(error, bytes(content)) from None
        json.loads(content, object_pairs_hook=_refuse_repeated_keys)
        if ignored := check_unknown(body, refuses=self._refuses_unknown):
            self._ignored.note(ignored)
            request.state.ignored_fields = ignored
        request.state.body = body
        return body


def ignored_header(request: Request) -> dict[str, str]:
    """Returns the header that names the fields of the body that were ignored."""
    return header_of(getattr(request.state, "ignored_fields", ()))


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> None:
    """A key that comes twice means one thing here and another to a proxy that takes the first."""
    if len(keys := {key for key, _ in pairs}) == len(pairs):
        return
    for key, _ in pairs:
        if key not in keys:
            raise BadRequest(f"{key[:MAX_KEY_CHARS]}: the same key twice in one object", key)
        keys.remove(key)


class Ids:
    """The id that the client sees, and those of the generations behind it.

    A `request_id` in the body must be unique, as over gRPC. One in the header labels what may be
    several requests, as gateways do it; each gets an id that begins with it.

    Raises InvalidArgument if `request_id` is not printable ASCII: a header repeats it.
    """

    def __init__(self, prefix: str, request: Request, asked_for: str | None) -> None:
        if asked_for:
            validation.check_request_id(asked_for)
        header = _label(request)
        unique = uuid.uuid4().hex
        name = asked_for or (f"{header[:MAX_LABEL_CHARS]}-{unique[:8]}" if header else unique)
        self.response_id = f"{prefix}-{name}"
        self.headers = {REQUEST_ID_HEADER: header or self.response_id, **ignored_header(request)}

    def of(self, position: int, num_prompts: int) -> str:
        return self.response_id if num_prompts == 1 else f"{self.response_id}-{position}"


def _label(request: Request) -> str | None:
    header = request.headers.get(REQUEST_ID_HEADER)
    try:
        if header is not None:
            validation.check_request_id(header)
    except InvalidArgument:  # a label is of no consequence
        return None
    return header

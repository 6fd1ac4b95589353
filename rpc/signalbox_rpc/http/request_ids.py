"""The id of a request, which every answer of an HTTP port carries in `x-request-id`."""

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # services without an HTTP port import this module, too
    from starlette.types import Scope

HEADER = "x-request-id"
MAX_ID_CHARS = 128
"""Characters of an id; a longer one of a client is ignored."""
_NAME = HEADER.encode()


def label_of(scope: "Scope") -> str:
    """Returns the id that the client gave; empty without a valid one."""
    for name, value in scope["headers"]:
        if name == _NAME:
            text: str = value.decode("latin-1")
            return text if is_valid(text) else ""
    return ""


def is_valid(text: str) -> bool:
    """Returns whether a text may stand in a header and in the log."""
    return text.isascii() and text.isprintable() and len(text) <= MAX_ID_CHARS


def name_request(scope: "Scope", request_id: str) -> None:
    """Sets the id that answers carry if the client gave none."""
    scope["state"][HEADER] = request_id


def header_of(scope: "Scope | None") -> tuple[bytes, bytes]:
    """Returns the header of an answer; without a scope, of a request that could not be read."""
    state: dict[str, Any] = {} if scope is None else scope.get("state", {})
    given = "" if scope is None else label_of(scope)
    return _NAME, (given or state.get(HEADER) or uuid.uuid4().hex).encode()

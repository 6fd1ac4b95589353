"""Errors of HTTP ports in OpenAI's shape, also for connections that never reach an application."""

import http
import json
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import Scope, Send

from signalbox_rpc.http import request_ids

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "service_unavailable_error",
    504: "timeout_error",
    505: "invalid_request_error",
}
"""`type` of the error for each status; all other statuses are server errors."""


@dataclass(frozen=True, slots=True)
class HttpError:
    """An answer that refuses a request because of its connection or its head."""

    status: int
    message: str
    code: str | None = None
    closes: bool = False
    """True if the connection is closed after it, because the bytes that follow are ambiguous."""
    retry_after_s: int | None = None
    given: str | None = None
    """Value of a header, which the answer repeats behind the message, and no log line."""

    async def send(self, send: Send) -> None:
        """Sends the error as the answer of an ASGI application."""
        await send(
            {"type": "http.response.start", "status": self.status, "headers": [*self._headers()]}
        )
        await send({"type": "http.response.body", "body": self._body()})

    def to_bytes(self, scope: Scope | None = None) -> bytes:
        """Returns the answer's bytes, for a connection that is closed after it.

        Args:
            scope: the request's, if its head could be read.
        """
        reason = http.HTTPStatus(self.status).phrase.encode()
        lines = [b"HTTP/1.1 %d %s" % (self.status, reason)]
        headers = [*self._headers(), request_ids.header_of(scope)]
        lines += [b"%s: %s" % header for header in headers]
        is_head = scope is not None and scope["method"] == "HEAD"
        return b"\r\n".join([*lines, b"", b"" if is_head else self._body()])

    def _body(self) -> bytes:
        kind = TYPES.get(self.status, "internal_error")
        given = "" if self.given is None else f"; given: {self.given!r}"
        error = {"message": self.message + given, "type": kind, "param": None, "code": self.code}
        return json.dumps({"error": error}, ensure_ascii=False).encode()

    def _headers(self) -> Iterable[tuple[bytes, bytes]]:
        yield b"content-type", b"application/json"
        yield b"content-length", b"%d" % len(self._body())
        if self.closes:
            yield b"connection", b"close"
        if self.retry_after_s is not None:
            yield b"retry-after", b"%d" % self.retry_after_s

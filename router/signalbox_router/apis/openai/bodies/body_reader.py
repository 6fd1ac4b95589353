"""Reads requests: their bodies, with limits and checks, and their ids."""

import secrets
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from signalbox_router.apis.openai.bodies.body_parser import SMALL_BODY_BYTES, parse
from signalbox_router.apis.openai.bodies.content_coding import body_of
from signalbox_router.apis.openai.bodies.media_type import require_json
from signalbox_router.apis.openai.bodies.unknown_fields import IgnoredLog, check_unknown, header_of
from signalbox_router.apis.openai.requests.errors import BodyTooLarge
from signalbox_router.apis.openai.requests.types import Body
from signalbox_router.params import params_validation
from signalbox_rpc.http import request_ids
from signalbox_rpc.http.disconnection import until_disconnected
from signalbox_rpc.limits.large_requests import LargeRequests

MAX_LABEL_CHARS = 96
"""Characters of a header that become part of an id, which has other parts and its own limit."""
B = TypeVar("B", bound=Body)
T = TypeVar("T")


class BodyReader:
    """Reads bodies of at most `max_bytes`; `refuses_unknown` decides on unknown fields."""

    def __init__(self, *, max_bytes: int, refuses_unknown: bool) -> None:
        self._max_bytes = max_bytes
        self._refuses_unknown = refuses_unknown
        self._ignored = IgnoredLog()
        self._large = LargeRequests(small_bytes=SMALL_BODY_BYTES, most_bytes=max_bytes)

    async def read(self, request: Request, kind: type[B], into: Callable[[B], T]) -> tuple[B, T]:
        """Returns the body and `into(body)`; for a large body both are computed in a thread.

        The body and the names of its ignored fields are stored in the request's state, for error
        messages, the response header, and a caller that reads it again.

        Raises UnsupportedMediaType, UnsupportedCoding, BodyTooLarge, BadRequest, ResourceExhausted,
        ClientDisconnect, or the exceptions of `into`.
        """
        if (body := getattr(request.state, "body", None)) is not None:
            num_bytes: int = request.state.num_body_bytes
            return body, await self.convert(request, num_bytes, lambda: into(body))
        require_json(request)
        with self._large.account() as hold:
            content = bytearray()
            async for chunk in body_of(request, max_bytes=self._max_bytes):
                content += chunk
                if len(content) > self._max_bytes:
                    raise BodyTooLarge(f"the body has more than {self._max_bytes} bytes")
                hold(len(content))
            request.state.num_body_bytes = len(content)
            read = partial(self._read, request, bytes(content), kind, into)
            if len(content) <= SMALL_BODY_BYTES:
                return read()
            return await until_disconnected(request.receive, self._large.parse(read))

    async def convert(self, request: Request, num_bytes: int, work: Callable[[], T]) -> T:
        """Returns the result of work on so many bytes, in a thread if they are many."""
        if num_bytes <= SMALL_BODY_BYTES:
            return work()
        return await until_disconnected(request.receive, self._large.parse(work))

    def _read(
        self, request: Request, content: bytes, kind: type[B], into: Callable[[B], T]
    ) -> tuple[B, T]:
        body = parse(content, kind)
        if ignored := check_unknown(body, refuses=self._refuses_unknown):
            self._ignored.record(ignored)
            request.state.ignored_fields = ignored
        request.state.body = body
        return body, into(body)


def ignored_header(request: Request) -> dict[str, str]:
    """Returns the header that lists the body's ignored fields."""
    return header_of(getattr(request.state, "ignored_fields", ()))


class Ids:
    """The id that the client sees, and the ids of the generations behind it.

    A `request_id` in the body must be unique, as over gRPC. One in the header labels several
    requests, as gateways use it; each gets an id that begins with it.

    Raises InvalidArgument if `request_id` is not printable ASCII, because a header repeats it.
    """

    def __init__(
        self, prefix: str, request: Request, asked_for: str | None, *, separator: str = "-"
    ) -> None:
        if asked_for:
            params_validation.check_request_id(asked_for)
        header = request_ids.label_of(request.scope)
        unique = secrets.token_hex(16)
        self.random_id = f"{prefix}{separator}{unique}"
        """An id with 128 random bits, whatever the client calls the request."""
        name = asked_for or (f"{header[:MAX_LABEL_CHARS]}-{unique[:8]}" if header else unique)
        self.response_id = f"{prefix}{separator}{name}"
        request_ids.name_request(request.scope, self.response_id)
        self.headers = ignored_header(request)

    def of(self, position: int, num_prompts: int) -> str:
        return self.response_id if num_prompts == 1 else f"{self.response_id}-{position}"

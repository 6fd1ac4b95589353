"""The forms of a call on the HTTP port: Connect's of one answer and of a stream, and gRPC-Web's.

See Connect's protocol reference (connectrpc.com/docs/protocol) and gRPC's PROTOCOL-WEB.md. A call
is known by its `Content-Type`. None of them is one that web pages may send to other origins without
asking (CORS), and so text/plain, which is, is refused.
"""

import base64
import re
from collections.abc import Mapping
from typing import ClassVar, NamedTuple
from urllib.parse import quote

from starlette.datastructures import Headers

from signalbox_contract.errors import InvalidArgument, RpcError
from signalbox_router.apis.connect import envelopes
from signalbox_router.apis.connect.error_codec import connect_error, end_of_stream, http_status_of
from signalbox_router.apis.openai.requests.errors import error_headers
from signalbox_rpc.interceptors.status import DETAILS, status_of

_MILLISECONDS = re.compile(r"\d{1,10}", re.ASCII)
_GRPC_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TRAILERS = 0x80
"""Flag of what follows gRPC-Web's messages."""
_END_OF_STREAM = 2
"""Flag of what follows Connect's messages."""


class AnswerHead(NamedTuple):
    """Status and headers of an answer."""

    status: int
    headers: Mapping[str, str]


class Wire:
    """Reads the request of one call and writes its answer.

    Here it is Connect's call with one answer, whose bodies are messages without an envelope.
    """

    system: ClassVar[str] = "connectrpc"
    """Name of the protocol in traces."""
    _streams: ClassVar[tuple[bool, ...]] = (False,)
    """Kinds of calls that have this form: True for a stream of answers."""
    _coding_header: ClassVar[str] = "content-encoding"
    _accepted_header: ClassVar[str] = "accept-encoding"

    def __init__(self, media_type: str, headers: Headers, *, is_json: bool) -> None:
        self.media_type = media_type
        """Media type of the request, which is the answer's, too."""
        self.is_json = is_json
        self._headers = headers
        accepted = headers.get(self._accepted_header, "").lower().split(",")
        self.compresses = envelopes.GZIP in (one.strip() for one in accepted)
        """True if the client reads compressed messages."""

    @classmethod
    def fits(cls, *, streams: bool) -> bool:
        """Returns whether a call with one answer, or with a stream of them, has this form."""
        return streams in cls._streams

    def timeout_s(self) -> float | None:
        """Returns the seconds that the call may take; None if it names none. Raises
        InvalidArgument."""
        version = self._headers.get("connect-protocol-version", "1")
        if version != "1":
            raise InvalidArgument("connect-protocol-version", version, "1")
        given = self._headers.get("connect-timeout-ms")
        if given is not None and not _MILLISECONDS.fullmatch(given):
            raise InvalidArgument("connect-timeout-ms", given, "up to 10 digits")
        return None if given is None else int(given) / 1000

    async def message_of(self, body: bytes, *, max_bytes: int) -> bytes:
        """Returns the bytes of the request's message in its body, which HTTP has decoded."""
        return body

    def head(self, error: RpcError | None = None, *, is_compressed: bool = False) -> AnswerHead:
        """Returns what an answer begins with.

        Args:
            error: that of a call which fails before its first message.
            is_compressed: True if the first message is.
        """
        if error is not None:
            headers = {"content-type": "application/json", **error_headers(error)}
            return AnswerHead(http_status_of(error), headers)
        coding = {self._coding_header: envelopes.GZIP} if is_compressed else {}
        headers = {"content-type": self.media_type, "vary": "accept-encoding", **coding}
        return AnswerHead(200, headers)

    def written(self, data: bytes, *, is_compressed: bool) -> bytes:
        """Returns what the body has of one message of the answer."""
        return data

    def end(self, error: RpcError | None) -> bytes:
        """Returns what the body ends with."""
        return b"" if error is None else connect_error(error)


class StreamWire(Wire):
    """Connect's call with a stream of answers."""

    _streams: ClassVar[tuple[bool, ...]] = (True,)
    _coding_header = "connect-content-encoding"
    _accepted_header = "connect-accept-encoding"

    async def message_of(self, body: bytes, *, max_bytes: int) -> bytes:
        coding = self._headers.get(self._coding_header, envelopes.IDENTITY).strip().lower()
        envelopes.check_coding(coding)
        return await envelopes.only_message(body, coding, max_bytes=max_bytes)

    def head(self, error: RpcError | None = None, *, is_compressed: bool = False) -> AnswerHead:
        coding = {self._coding_header: envelopes.GZIP} if self.compresses else {}
        return AnswerHead(200, {"content-type": self.media_type, **coding})

    def written(self, data: bytes, *, is_compressed: bool) -> bytes:
        return envelopes.enclosed(data, envelopes.COMPRESSED if is_compressed else 0)

    def end(self, error: RpcError | None) -> bytes:
        return envelopes.enclosed(end_of_stream(error), _END_OF_STREAM)


class GrpcWebWire(StreamWire):
    """gRPC-Web's call, with one answer or a stream of them."""

    system = "grpc"
    _streams = (False, True)
    _coding_header = "grpc-encoding"
    _accepted_header = "grpc-accept-encoding"

    def timeout_s(self) -> float | None:
        given = self._headers.get("grpc-timeout")
        if given is None:
            return None
        found = _GRPC_TIMEOUT.fullmatch(given)
        if found is None:
            raise InvalidArgument("grpc-timeout", given, "up to 8 digits, and a unit")
        return int(found[1]) * _UNITS_S[found[2]]

    def end(self, error: RpcError | None) -> bytes:
        """Returns the trailers, which are in the body: a browser shows a page no others."""
        lines = [f"grpc-status: {0 if error is None else int(error.code)}"]
        if error is not None:
            status = status_of(error)
            details = base64.b64encode(status.SerializeToString()).decode().rstrip("=")
            lines += [f"grpc-message: {quote(status.message, safe=_UNESCAPED)}"]
            lines += [f"{DETAILS}: {details}"] if status.details else []
        return envelopes.enclosed("".join(f"{line}\r\n" for line in lines).encode(), _TRAILERS)


_UNESCAPED = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
"""Characters of a status's message that are sent as they are (gRPC over HTTP2, Percent-Encoded)."""


class GrpcWebTextWire(GrpcWebWire):
    """gRPC-Web's call in base64, which the client `grpc-web` uses for streams."""

    async def message_of(self, body: bytes, *, max_bytes: int) -> bytes:
        return await super().message_of(envelopes.from_text(body), max_bytes=max_bytes)

    def written(self, data: bytes, *, is_compressed: bool) -> bytes:
        return base64.b64encode(super().written(data, is_compressed=is_compressed))

    def end(self, error: RpcError | None) -> bytes:
        return base64.b64encode(super().end(error))


_KINDS: Mapping[str, tuple[type[Wire], bool]] = {
    "application/proto": (Wire, False),
    "application/json": (Wire, True),
    "application/connect+proto": (StreamWire, False),
    "application/connect+json": (StreamWire, True),
    "application/grpc-web": (GrpcWebWire, False),
    "application/grpc-web+proto": (GrpcWebWire, False),
    "application/grpc-web+json": (GrpcWebWire, True),
    "application/grpc-web-text": (GrpcWebTextWire, False),
    "application/grpc-web-text+proto": (GrpcWebTextWire, False),
}


def media_types(*, streams: bool) -> list[str]:
    """Returns the types of a call with one answer, or of one with a stream of them."""
    return [name for name, (kind, _) in _KINDS.items() if kind.fits(streams=streams)]


def wire_of(headers: Headers) -> Wire | None:
    """Returns the form that a request's type names; None if no call has it."""
    given = headers.getlist("content-type")
    media_type = given[0].partition(";")[0].strip().lower() if len(given) == 1 else ""
    if media_type not in _KINDS:
        return None
    kind, is_json = _KINDS[media_type]
    return kind(media_type, headers, is_json=is_json)

"""Counts the bytes of large requests before they are parsed, and parses them in a thread.

protobuf's parser keeps the interpreter's lock, and may turn two bytes into an object of a hundred.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from signalbox_contract.errors import InvalidArgument
from signalbox_rpc.interceptors.call_handlers import Handler, Requests, WrappingInterceptor, wrap
from signalbox_rpc.interceptors.status import MalformedRequest
from signalbox_rpc.limits.large_requests import LargeRequests
from signalbox_rpc.limits.wire_scan import TooManyFields, check_num_fields

SMALL_MESSAGE_BYTES = 16 << 10
"""Bytes of the longest message that is parsed on the event loop; that takes at most 15 ms."""
MAX_FIELDS = (1 << 18) + (1 << 16)
"""Most fields of a message, nested messages included: 65,536 turns of a conversation have four
each. A packed list counts as one field."""
M = TypeVar("M", bound=Message)
T = TypeVar("T")


class _Unparsed(NamedTuple):
    data: bytes


class LargeMessages(WrappingInterceptor):
    """Reads the requests of calls that have one request each.

    It must be around the interceptor that writes.
    """

    def __init__(self, on_malformed: Callable[[str], None] = lambda _method: None) -> None:
        """Calls `on_malformed` with the method of each call whose request is malformed."""
        self._on_malformed = on_malformed
        self._large = LargeRequests(small_bytes=SMALL_MESSAGE_BYTES)

    async def convert(self, request: M, into: Callable[[M], T]) -> T:
        """Returns `into(request)`; for a large request it runs in a thread."""
        if request.ByteSize() <= SMALL_MESSAGE_BYTES:
            return into(request)
        return await self._large.parse(partial(into, request))

    def wrapped(self, handler: Handler, method: str) -> Handler:
        if handler.request_streaming:
            return handler
        kind: Any = getattr(handler.request_deserializer, "__self__", None)
        if not hasattr(kind, "DESCRIPTOR"):
            return handler

        async def read(request: Requests) -> Requests:
            if type(request) is not _Unparsed:
                return request
            return await self._read(request, kind, method)

        def deserialize(data: bytes) -> Any:
            return kind.FromString(data) if len(data) <= SMALL_MESSAGE_BYTES else _Unparsed(data)

        return wrap(handler, deserialize=deserialize, read=read)

    async def _read(self, request: _Unparsed, kind: Any, method: str) -> Any:
        with self._large.account() as hold:
            hold(len(request.data))
            try:
                return await self._large.parse(partial(_parsed, request.data, kind))
            except MalformedRequest:
                self._on_malformed(method)
                raise


def _parsed(data: bytes, kind: Any) -> Any:
    try:
        check_num_fields(data, kind.DESCRIPTOR, most=MAX_FIELDS)
        return kind.FromString(data)
    except TooManyFields as error:
        count = f"a message of more than {MAX_FIELDS} fields"
        raise InvalidArgument(error.name or "request", count, f"at most {MAX_FIELDS}") from None
    except Exception:  # protobuf, upb and UTF-8 errors share no narrower base
        raise MalformedRequest(len(data)) from None

"""Serves a gRPC servicer to clients that speak Connect or gRPC-Web, on the HTTP port.

The handlers are those that gRPC calls, with what is around them there: keys and tenants come from
headers, large messages are read in threads. A call ends when its client leaves or its time is over.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import Message
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from signalbox_contract.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    RpcError,
    Unimplemented,
)
from signalbox_router.apis.connect import envelopes, json_codec
from signalbox_router.apis.connect.wires import Wire, media_types, wire_of
from signalbox_router.apis.openai.bodies.content_coding import body_of
from signalbox_router.apis.openai.bodies.media_type import JSON
from signalbox_router.apis.openai.requests.errors import (
    BadRequest,
    BodyTooLarge,
    UnsupportedCoding,
)
from signalbox_router.apis.openai.requests.types import Body
from signalbox_router.apis.openai.streaming import BODY_SENDER, NOT_CACHED
from signalbox_rpc.http.disconnection import until_disconnected
from signalbox_rpc.interceptors.call_handlers import Handler
from signalbox_rpc.interceptors.response_stream import ClientStalled
from signalbox_rpc.interceptors.status import MalformedRequest
from signalbox_rpc.limits.large_messages import SMALL_MESSAGE_BYTES, LargeMessages
from signalbox_rpc.limits.large_requests import LargeRequests

logger = logging.getLogger(__name__)


class RpcMethod(NamedTuple):
    """A method of the service."""

    name: str
    """Path of its calls, "/service/method"."""
    kind: type[Message]
    """Type of its request."""
    read: Callable[[bytes], Any]
    """Returns what `run` takes for the bytes of a request."""
    run: Callable[[Any, Any], Awaitable[Any]]
    """Calls the handler: returns the one answer, or writes those of a stream to the context."""
    streams: bool
    """True if the answer is a stream."""


class _Handlers:
    """Takes the place of a gRPC server, to which the generated code adds a service."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Does nothing: the same handlers come by their names."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        self.handlers |= {f"/{service}/{name}": one for name, one in handlers.items()}


def methods_of(
    servicer: object, add_to_server: Callable[[Any, Any], None], messages: LargeMessages
) -> dict[str, RpcMethod]:
    """Returns the methods of a servicer by the paths of their calls."""
    found = _Handlers()
    add_to_server(servicer, found)
    return {name: _method(name, one, messages) for name, one in found.handlers.items()}


def _method(name: str, handler: Any, messages: LargeMessages) -> RpcMethod:
    kind, streams = handler.request_deserializer.__self__, handler.response_streaming
    wrapped: Any = messages.wrapped(handler, name)  # whose streams are written by coroutines
    run = wrapped.unary_stream if streams else wrapped.unary_unary
    return RpcMethod(name, kind, wrapped.request_deserializer, run, streams)


class RpcErrors:
    """Writes the errors of calls that do not come to the application, such as without a key."""

    def response(self, error: RpcError, body: Body | None, scope: Scope) -> Response:
        headers = Headers(scope=scope)
        wire = wire_of(headers) or Wire(JSON, headers, is_json=True)
        status, told = wire.head(error)
        return Response(wire.end(error), status, headers=told)


class WebServicer:
    """An ASGI application for the calls of services.

    Args:
        methods: those of `methods_of`.
        max_bytes: bytes of the longest request, as it is sent and as it is read.
        ignores_unknown: True if fields of JSON that a message does not have are ignored.
        on_malformed: called with the path of each call whose request is malformed.
    """

    def __init__(
        self,
        methods: Mapping[str, RpcMethod],
        *,
        max_bytes: int,
        ignores_unknown: bool,
        on_malformed: Callable[[str], None],
    ) -> None:
        self._methods = methods
        self._max_bytes = max_bytes
        self._ignores_unknown = ignores_unknown
        self._on_malformed = on_malformed
        self._large = LargeRequests(small_bytes=SMALL_MESSAGE_BYTES, most_bytes=max_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, wire = self._methods.get(scope["path"]), wire_of(Headers(scope=scope))
        if scope["method"] != "POST":
            message = f"{scope['method']}: a call is a POST; its message may not be in a URL"
            await _refused(scope, receive, send, 405, Unimplemented(message), allow="POST")
        elif method is None:
            error = Unimplemented(f"{scope['path'][:100]} is no method of this service")
            await RpcErrors().response(error, None, scope)(scope, receive, send)
        elif wire is None or not wire.fits(streams=method.streams):
            listed = ", ".join(media_types(streams=method.streams))
            refusal = InvalidArgument("content-type", None, reason=f"the call takes {listed}")
            await _refused(scope, receive, send, 415, refusal, accept_post=listed)
        else:
            await self._serve(method, _Call(wire, scope, send), Request(scope, receive))

    async def _serve(self, method: RpcMethod, call: "_Call", request: Request) -> None:
        error: RpcError | None = None
        try:
            call.begin()
            async with asyncio.timeout_at(call.ends_at) as ending:
                message = await self._message(method, call.wire, request)
                await until_disconnected(request.receive, _run(method, message, call))
        except (ClientDisconnect, ClientStalled):
            return
        except RpcError as raised:
            error = raised
        except Exception as raised:
            if isinstance(raised, TimeoutError) and ending.expired():
                error = DeadlineExceeded("the call's deadline has passed")
            else:
                logger.error("%s failed", method.name, exc_info=raised)
                error = Internal("internal error; the server's log says more")
        with suppress(ClientStalled):
            await call.end(error)

    async def _message(self, method: RpcMethod, wire: Wire, request: Request) -> Any:
        """Returns the request's message, or what its handler makes one of."""
        with self._large.account() as hold:
            body = await self._body(request, hold)
            try:
                data = await wire.message_of(body, max_bytes=self._max_bytes)
                hold(len(body) + len(data))
                return await self._parsed(method, data, is_json=wire.is_json)
            except (MalformedRequest, InvalidArgument):
                self._on_malformed(method.name)
                raise

    async def _body(self, request: Request, hold: Callable[[int], None]) -> bytes:
        content = bytearray()
        try:
            async for chunk in body_of(request, max_bytes=self._max_bytes):
                content += chunk
                if len(content) > self._max_bytes:
                    raise BodyTooLarge(f"the body has more than {self._max_bytes} bytes")
                hold(len(content))
        except BodyTooLarge as error:
            raise ResourceExhausted(error.message) from None
        except UnsupportedCoding as error:
            raise Unimplemented(error.message) from None
        except BadRequest as error:
            raise InvalidArgument("request", None, reason=error.message) from None
        return bytes(content)

    async def _parsed(self, method: RpcMethod, data: bytes, *, is_json: bool) -> Any:
        if not is_json:
            try:
                return method.read(data)
            except Exception:  # protobuf, upb and UTF-8 errors share no narrower base
                raise MalformedRequest(len(data)) from None
        read = partial(json_codec.read, data, method.kind, ignores_unknown=self._ignores_unknown)
        return read() if len(data) <= SMALL_MESSAGE_BYTES else await self._large.parse(read)


async def _refused(
    scope: Scope, receive: Receive, send: Send, status: int, error: RpcError, **headers: str
) -> None:
    """Answers what is no call of any form, in Connect's shape."""
    wire = Wire(JSON, Headers(), is_json=True)
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    told["content-type"] = wire.head(error).headers["content-type"]
    await Response(wire.end(error), status, headers=told)(scope, receive, send)


async def _run(method: RpcMethod, message: Any, call: "_Call") -> None:
    answer = await method.run(message, call)
    if not method.streams:
        await call.write(answer)


class _Call:
    """One call: what handlers ask of their context, and the writing of the answer."""

    def __init__(self, wire: Wire, scope: Scope, send: Send) -> None:
        self.wire = wire
        self.system = wire.system
        self.ends_at: float | None = None
        """Time on the loop's clock when the call's time is over; None if it has no bound."""
        self._scope = scope
        self._send_head = send
        self._send: Send = scope.get(BODY_SENDER, send)
        self._has_begun = False

    def begin(self) -> None:
        """Sets the deadline. Raises InvalidArgument."""
        timeout_s = self.wire.timeout_s()
        if timeout_s is not None:
            self.ends_at = asyncio.get_running_loop().time() + timeout_s

    def peer(self) -> str:
        """Returns the client's address as gRPC names it."""
        host, port = self._scope.get("client") or ("", 0)
        return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return Headers(scope=self._scope).items()

    def time_remaining(self) -> float | None:
        if self.ends_at is None:
            return None
        return max(0.0, self.ends_at - asyncio.get_running_loop().time())

    async def write(self, message: Message) -> None:
        """Writes a message of the answer; a long one is made in a thread."""
        if message.ByteSize() > SMALL_MESSAGE_BYTES:
            content, is_compressed = await asyncio.to_thread(self._written, message)
        else:
            content, is_compressed = self._written(message)
        if not self._has_begun:
            await self._begin(is_compressed=is_compressed)
        await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def end(self, error: RpcError | None) -> None:
        """Writes the end of the answer."""
        if not self._has_begun:
            await self._begin(error)
        body = self.wire.end(error)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def _written(self, message: Message) -> tuple[bytes, bool]:
        wire = self.wire
        data = json_codec.write(message) if wire.is_json else message.SerializeToString()
        is_long = wire.compresses and len(data) >= envelopes.MIN_COMPRESSED_BYTES
        content = envelopes.compressed(data) if is_long else data
        return wire.written(content, is_compressed=is_long), is_long

    async def _begin(self, error: RpcError | None = None, *, is_compressed: bool = False) -> None:
        self._has_begun = True
        status, headers = self.wire.head(error, is_compressed=is_compressed)
        raw = [(name.encode(), text.encode()) for name, text in {**headers, **NOT_CACHED}.items()]
        await self._send_head({"type": "http.response.start", "status": status, "headers": raw})

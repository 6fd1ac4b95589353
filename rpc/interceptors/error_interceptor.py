"""Answers calls that fail: exceptions and malformed messages become statuses.

Any exception that is not an `RpcError` becomes INTERNAL, and its text appears only in the log.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from contract.errors import Internal, RpcError
from rpc.interceptors.call_handlers import Context, Handler, Requests, wrap
from rpc.interceptors.status import MalformedRequest, to_status

logger = logging.getLogger(__name__)

STATUS_TIMEOUT_S = 2.0
"""Seconds that a handler waits for its status to be written."""


@dataclass(frozen=True, slots=True)
class _Malformed:
    """Stands for a message that could not be parsed, until the handler's wrapper refuses it."""

    num_bytes: int

    def error(self) -> RpcError:
        return MalformedRequest(self.num_bytes)


class _CheckedRequests:
    """The requests of a stream; raises on the first that could not be parsed."""

    __slots__ = ("_on_malformed", "_requests")

    def __init__(self, requests: AsyncIterator[Any], on_malformed: Callable[[], None]) -> None:
        self._requests = requests
        self._on_malformed = on_malformed

    def __aiter__(self) -> "_CheckedRequests":
        return self

    async def __anext__(self) -> Any:
        request = await anext(self._requests)
        if isinstance(request, _Malformed):
            self._on_malformed()
            raise request.error()
        return request


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Maps exceptions to statuses; must be the outermost interceptor, around
    `CallBoundsInterceptor`.

    It also wraps the deserialisers, because gRPC reports malformed bytes as UNKNOWN with the name
    of a Python exception. Cancellation passes through.
    """

    def __init__(self, on_malformed: Callable[[str], None] = lambda _method: None) -> None:
        """Calls `on_malformed` with the method of each call that received a malformed request."""
        self._on_malformed = on_malformed

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        try:
            handler = await continuation(handler_call_details)
        except Exception as error:
            return _refusing(method, error)
        if handler is None:
            return None

        async def around(call: Awaitable[Any], context: Context) -> Any:
            try:
                return await call
            except Exception as error:
                await _abort(method, error, context)

        def check(requests: Requests) -> Requests:
            return _CheckedRequests(requests, partial(self._on_malformed, method))

        return wrap(handler, around, deserialize=_deserializer(handler), check=check)


def _deserializer(handler: Handler) -> Callable[[bytes], Any] | None:
    parse = handler.request_deserializer
    if parse is None:
        return None

    def parse_or_mark(data: bytes) -> Any:
        try:
            return parse(data)
        except Exception:  # protobuf, upb and UTF-8 errors share no narrower base
            return _Malformed(len(data))

    return parse_or_mark


def _refusing(method: str, error: Exception) -> Handler:
    """Returns a handler of any kind of call that answers with `error` before it reads anything."""

    async def refuse(_requests: Requests, context: Context) -> None:
        await _abort(method, error, context)

    return grpc.stream_stream_rpc_method_handler(refuse)


async def _abort(method: str, error: Exception, context: Context) -> None:
    if isinstance(error, grpc.aio.BaseError):  # the handler itself has aborted the call
        raise error
    if not isinstance(error, RpcError):
        logger.error("%s failed", method, exc_info=error)
        error = Internal("internal error; the server's log says more")
    if context.done():
        return
    with contextlib.suppress(TimeoutError):  # it stays queued for a client that does not read
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            await context.abort_with_status(to_status(error))

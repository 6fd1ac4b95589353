"""Answers calls that fail: exceptions and malformed messages become statuses.

Any exception that is not an `RpcError` becomes INTERNAL, and its text appears only in the log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from signalbox_contract.errors import Internal, RpcError
from signalbox_rpc.interceptors.call_handlers import Context, Handler, Requests, wrap
from signalbox_rpc.interceptors.status import MalformedRequest, to_status
from signalbox_rpc.lifetime.handled_errors import release_frames

logger = logging.getLogger(__name__)

STATUS_TIMEOUT_S = 2.0
"""Seconds that a handler waits for its status to be written."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Maps exceptions to statuses; must be the outermost interceptor, around
    `CallBoundsInterceptor`.

    It also wraps the deserialisers: a handler that reads a stream, as all handlers do inside
    `CallBoundsInterceptor`, gets what they raise. Cancellation passes through.
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
                await _abort_and_release(method, error, context)

        return wrap(handler, around, deserialize=self._deserializer(handler, method))

    def _deserializer(self, handler: Handler, method: str) -> Callable[[bytes], Any] | None:
        parse = handler.request_deserializer
        if parse is None:
            return None

        def parse_or_refuse(data: bytes) -> Any:
            try:
                return parse(data)
            except Exception:  # protobuf, upb and UTF-8 errors share no narrower base
                self._on_malformed(method)
                raise MalformedRequest(len(data)) from None

        return parse_or_refuse


def _refusing(method: str, error: Exception) -> Handler:
    """Returns a handler of any kind of call that answers with `error` before it reads anything."""

    async def refuse(_requests: Requests, context: Context) -> None:
        await _abort_and_release(method, error, context)

    return grpc.stream_stream_rpc_method_handler(refuse)


async def _abort_and_release(method: str, error: Exception, context: Context) -> None:
    """Aborts a call, which keeps the exception that gRPC raises for it, but no variable that the
    handler had."""
    try:
        await _abort(method, error, context)
    except BaseException as aborted:  # with `error` as its context; gRPC takes it at once
        asyncio.get_running_loop().call_soon(release_frames, aborted)
        raise
    release_frames(error)


async def _abort(method: str, error: Exception, context: Context) -> None:
    if isinstance(error, grpc.aio.InternalError):
        raise asyncio.CancelledError from None  # gRPC has ended the call, as of a client that left
    if isinstance(error, grpc.aio.BaseError):  # the handler itself has aborted the call
        raise error
    if not isinstance(error, RpcError):
        logger.error("%s failed", method, exc_info=error)
        error = Internal("internal error; the server's log says more")
    if context.done():
        return
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            await context.abort_with_status(to_status(error))
    except TimeoutError:
        pass  # it stays queued for a client that does not read
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # gRPC has, such as for a message that is too large

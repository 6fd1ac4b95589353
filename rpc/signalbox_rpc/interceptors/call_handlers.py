"""Wraps method handlers, so that an interceptor treats the four kinds of call as one."""

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import grpc

from signalbox_rpc.interceptors.response_stream import Write, write_all

if TYPE_CHECKING:  # generic only in the stubs
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    Handler = grpc.RpcMethodHandler
    Context = grpc.aio.ServicerContext
Requests = Any
"""One request, or an async iterator of them."""
Writing = Callable[[Context], AbstractContextManager[Write]]
Around = Callable[[Awaitable[Any], Context], Awaitable[Any]]


class WrappingInterceptor(grpc.aio.ServerInterceptor):
    """An interceptor that wraps the handlers of calls; gRPC answers for unknown methods."""

    @abstractmethod
    def wrapped(self, handler: Handler, method: str) -> Handler:
        """Returns the handler that replaces `handler`, for calls of a full method name."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        return None if handler is None else self.wrapped(handler, handler_call_details.method)


def wrap(
    handler: Handler,
    around: Around | None = None,
    *,
    deserialize: Callable[[bytes], Any] | None = None,
    read: Callable[[Requests], Awaitable[Requests]] | None = None,
    writing: Writing | None = None,
) -> Handler:
    """Returns `handler` with every call run as `await around(call, context)`, if given.

    Args:
        deserialize: used instead of the handler's own deserialiser.
        read: returns what the handler gets instead of a request, inside of `around`.
        writing: writes a generator's responses, unless an inner interceptor has set its own.
    """
    behaviour = _behaviour(handler)
    run = (
        _write_responses(behaviour, writing or _plainly)
        if handler.response_streaming
        else behaviour
    )

    async def checked(requests: Requests, context: Context) -> Any:
        return await run(requests if read is None else await read(requests), context)

    inner = run if read is None else checked

    async def call(requests: Requests, context: Context) -> Any:
        assert around is not None
        return await around(inner(requests, context), context)

    return _CONSTRUCTORS[handler.request_streaming, handler.response_streaming](
        inner if around is None else call,
        request_deserializer=deserialize or handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def receiving(handler: Handler, receive: Callable[[Requests, Context], Awaitable[Any]]) -> Handler:
    """Returns a handler that receives its one request through `receive`, as a stream of one.

    gRPC itself would wait for the request for as long as the client likes before it calls the
    handler. A client cannot tell the two kinds of handler apart.
    """
    run = _behaviour(wrap(handler))

    async def call(requests: Requests, context: Context) -> Any:
        return await run(await receive(requests, context), context)

    return _CONSTRUCTORS[True, handler.response_streaming](
        call,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _behaviour(handler: Handler) -> Callable[[Requests, Context], Any]:
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    behaviour: Any = next(kind for kind in kinds if kind is not None)
    if inspect.isasyncgenfunction(behaviour) or inspect.iscoroutinefunction(behaviour):
        return behaviour  # type: ignore[no-any-return]
    raise TypeError(f"{behaviour!r} is not async; this server runs on one event loop")


def _write_responses(
    behaviour: Callable[[Requests, Context], Any], writing: Writing
) -> Callable[[Requests, Context], Awaitable[None]]:
    """Turns an async generator into a coroutine that writes its responses.

    When a call is cancelled, gRPC leaves a generator suspended in `yield` to the garbage collector;
    with this coroutine its `finally` has run by the end of the call. The stream has a task of its
    own, so that the coroutines around it resume once, and not twice for each message.
    """
    if not inspect.isasyncgenfunction(behaviour):
        return behaviour

    async def run(requests: Requests, context: Context) -> None:
        await _in_a_task(write_all(behaviour(requests, context), writing(context)))

    return run


async def _in_a_task(stream: Coroutine[Any, Any, None]) -> None:
    """Awaits a coroutine in a task of its own and copies the context variables that it has set.

    Log lines take their request's id from these variables, including the line about a failure.
    """
    variables = copy_context()
    try:
        await asyncio.create_task(stream, context=variables)
    finally:
        for variable, value in variables.items():
            variable.set(value)


def _plainly(context: Context) -> AbstractContextManager[Write]:
    return nullcontext(context.write)


_CONSTRUCTORS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}

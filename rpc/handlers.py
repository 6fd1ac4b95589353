"""Wraps method handlers, so that an interceptor treats the four kinds of call as one."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, aclosing, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:  # generic in the stubs alone
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    Handler = grpc.RpcMethodHandler
    Context = grpc.aio.ServicerContext
Requests = Any
"""One request, or an async iterator of them."""
Write = Callable[[Any], Awaitable[None]]
Writing = Callable[[Context], AbstractContextManager[Write]]
Around = Callable[[Awaitable[Any], Context], Awaitable[Any]]


def wrap(
    handler: Handler,
    around: Around | None = None,
    *,
    deserialize: Callable[[bytes], Any] | None = None,
    check: Callable[[Requests], Requests] | None = None,
    writing: Writing | None = None,
) -> Handler:
    """Returns `handler` with every call run as `await around(call, context)`, if given.

    Args:
        deserialize: used instead of the handler's own deserialiser.
        check: sees the request, or the iterator of requests, inside of `around`.
        writing: how a generator's responses are written, if no inner interceptor says.
    """
    behaviour = _behaviour(handler)
    run = (
        _write_responses(behaviour, writing or _plainly)
        if handler.response_streaming
        else behaviour
    )

    async def checked(requests: Requests, context: Context) -> Any:
        assert check is not None
        return await run(check(requests), context)

    inner = run if check is None else checked

    async def call(requests: Requests, context: Context) -> Any:
        assert around is not None
        return await around(inner(requests, context), context)

    return _CONSTRUCTORS[handler.request_streaming, handler.response_streaming](
        inner if around is None else call,
        request_deserializer=deserialize or handler.request_deserializer,
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

    gRPC leaves a generator that is suspended in `yield` when its call is cancelled to the garbage
    collector; here its `finally` has run when the call is over. The stream has a task of its own,
    so that the coroutines around it are resumed once, and not twice for each message.
    """
    if not inspect.isasyncgenfunction(behaviour):
        return behaviour

    async def write_all(requests: Requests, context: Context) -> None:
        with writing(context) as write:
            async with aclosing(behaviour(requests, context)) as responses:
                async for response in responses:
                    await write(response)

    async def run(requests: Requests, context: Context) -> None:
        await _in_a_task(write_all(requests, context))

    return run


async def _in_a_task(stream: Coroutine[Any, Any, None]) -> None:
    """Awaits a coroutine in a task of its own; takes over the context variables that it has set.

    Log lines have their request from these, that of its failure too.
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

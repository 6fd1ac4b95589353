"""A service with the four kinds of call, over wrapped strings, for the tests of rpc."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import StringValue

from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.server import Server

NAME = "test.Echo"
Action = Callable[[str], Any]


class Echo:
    """Answers with what `action` makes of each request's text; `action` may raise."""

    def __init__(self, action: Action = lambda text: text) -> None:
        self.action = action
        self.a_start = asyncio.Event()
        self.ended: list[str] = []
        self.an_end = asyncio.Event()

    async def _answer(self, text: str) -> StringValue:
        self.a_start.set()
        result = self.action(text)
        if hasattr(result, "__await__"):
            result = await result
        return StringValue(value=result)

    def _end(self, kind: str) -> None:
        self.ended.append(kind)
        self.an_end.set()

    async def unary(self, request: StringValue, context: Any) -> StringValue:
        try:
            return await self._answer(request.value)
        finally:
            self._end("unary")

    async def server_stream(self, request: StringValue, context: Any) -> AsyncIterator[StringValue]:
        try:
            while True:
                yield await self._answer(request.value)
        finally:
            self._end("server_stream")

    async def client_stream(self, requests: AsyncIterator[StringValue], context: Any) -> Any:
        return await self._answer(" ".join([request.value async for request in requests]))

    async def both_stream(
        self, requests: AsyncIterator[StringValue], context: Any
    ) -> AsyncIterator[StringValue]:
        async for request in requests:
            yield await self._answer(request.value)


KINDS = ("unary", "server_stream", "client_stream", "both_stream")
_HANDLERS = dict(
    zip(
        KINDS,
        (
            grpc.unary_unary_rpc_method_handler,
            grpc.unary_stream_rpc_method_handler,
            grpc.stream_unary_rpc_method_handler,
            grpc.stream_stream_rpc_method_handler,
        ),
        strict=True,
    )
)


def add_echo(echo: Echo, server: grpc.aio.Server) -> None:
    handlers = {
        kind: make(
            getattr(echo, kind),
            request_deserializer=StringValue.FromString,
            response_serializer=StringValue.SerializeToString,
        )
        for kind, make in _HANDLERS.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))


@asynccontextmanager
async def serving(echo: Echo, **options: Any) -> AsyncIterator[tuple[Server, grpc.aio.Channel]]:
    """Yields a server that serves `echo` on a free port, and a channel to it."""
    server = Server(Endpoint(), **options)
    server.add(echo, add_echo, name=NAME)
    await server.start()
    server.set_serving(NAME, serving=True)
    try:
        async with open_channel(server.address) as channel:
            yield server, channel
    finally:
        await server.drain(grace_s=0)


async def call(channel: grpc.aio.Channel, kind: str, *requests: bytes) -> list[str]:
    """Sends bytes as they are; returns the texts of up to as many answers as requests."""
    codec = {"response_deserializer": StringValue.FromString}
    method = getattr(channel, _CLIENTS[kind])(f"/{NAME}/{kind}", **codec)
    answers = method(iter(requests) if kind in ("client_stream", "both_stream") else requests[0])
    if kind in ("unary", "client_stream"):
        return [(await answers).value]
    texts = []
    async for answer in answers:
        texts.append(answer.value)
        if len(texts) == len(requests):
            break
    answers.cancel()
    return texts


_CLIENTS = dict(
    zip(KINDS, ("unary_unary", "unary_stream", "stream_unary", "stream_stream"), strict=True)
)


def text(value: str) -> bytes:
    return StringValue(value=value).SerializeToString()

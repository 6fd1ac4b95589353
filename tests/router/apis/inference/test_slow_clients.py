"""Clients that do not read lose their streams and what they held; no other client notices."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import grpc
import pytest
from google.protobuf.message import Message

from tests.chaos import hostile as http2
from tests.router.apis.openai.clients import MODEL, make_http
from tests.router.fakes import finished, ids_of, step
from tests.router.stack import Stack, make_generate, make_stack
from tests.waiting import EVENT_S

STALL_S = 0.5
RUN = ids_of(" Paris") * 3000
INITIAL_WINDOW_SIZE, PING, WINDOW_UPDATE, ACK = 4, 6, 8, 1
"""A setting, two frames and a flag of HTTP/2."""


async def send_until_aborted(stack: Stack, *handles: int) -> int:
    """Generates much for some requests; returns in how many steps, once one was aborted."""
    num_steps = 0
    async with asyncio.timeout(EVENT_S):
        while not stack.scheduler.aborted:
            stack.scheduler.send(step(*((handle, 0, RUN) for handle in handles)))
            num_steps += 1
            await asyncio.sleep(0.005)
    return num_steps


async def test_a_grpc_client_that_never_reads_lets_go_of_what_it_held() -> None:
    async with make_stack(client_stall_timeout=STALL_S, max_unread_tokens=1 << 30) as stack:
        reader = asyncio.create_task(stack.generate(request_id="reads"))
        async with grpc.aio.insecure_channel(stack.address) as channel:
            stalled = channel.unary_stream(
                "/signalbox.inference.v1.InferenceService/Generate",
                request_serializer=lambda message: message.SerializeToString(),
            )(make_generate(request_id="does not"))
            await stack.added(2)
            handles = {add.request_id: add.handle for add in stack.scheduler.added}
            num_steps = await send_until_aborted(stack, *handles.values())
            assert stack.scheduler.aborted == [handles["does not"]]
            stack.scheduler.send(step(**finished(handles["reads"])))
            tokens = sum(len(o.token_ids) for answer in await reader for o in answer.outputs)
            assert tokens == num_steps * len(RUN)
            await stack.check_nothing_is_left()  # while the client is there still
            with pytest.raises(grpc.aio.AioRpcError, match="does not read: nothing") as caught:
                async for _ in stalled:
                    pass
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


class ClosedWindow:
    """A call over HTTP/2 whose client takes so many bytes of answers until it opens the window."""

    def __init__(self, window: int) -> None:
        self._settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.frames = asyncio.Queue[tuple[int, int, bytes]]()
        """Kind, flags and payload of each frame of the call."""

    @asynccontextmanager
    async def calling(self, address: str, path: str, request: Message) -> AsyncIterator[Self]:
        host, _, port = address.rpartition(":")
        reader, self._writer = await asyncio.open_connection(host, int(port))
        data = request.SerializeToString()
        self._writer.write(
            http2.HTTP2_PREFACE
            + http2.frame(http2.SETTINGS, self._settings)
            + http2.frame(
                http2.HEADERS, http2.headers(path.encode()), flags=http2.END_HEADERS, stream=1
            )
            + http2.frame(
                http2.DATA,
                b"\0" + struct.pack(">I", len(data)) + data,
                flags=http2.END_STREAM,
                stream=1,
            )
        )
        reading = asyncio.create_task(self._read(reader))
        try:
            yield self
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self._writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            head = await reader.readexactly(9)
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if kind in (http2.SETTINGS, PING) and not flags & ACK:
                answer = payload if kind == PING else b""
                self._writer.write(http2.frame(kind, answer, flags=ACK))
            elif stream:
                self.frames.put_nowait((kind, flags, payload))

    async def status(self) -> bytes:
        """Opens the window, and returns the fields that follow what was written."""
        more = struct.pack(">I", 1 << 30)
        for stream in (0, 1):
            self._writer.write(http2.frame(WINDOW_UPDATE, more, stream=stream))
        async with asyncio.timeout(EVENT_S):
            while True:
                kind, flags, payload = await self.frames.get()
                if kind == http2.HEADERS and flags & http2.END_STREAM:
                    return payload


@pytest.mark.parametrize("window", [0, 20])
async def test_a_grpc_client_that_never_lets_the_first_message_through_is_told_why(
    window: int,
) -> None:
    call = ClosedWindow(window)
    generate = "/signalbox.inference.v1.InferenceService/Generate"
    async with (
        make_stack(client_stall_timeout=STALL_S, max_unread_tokens=1 << 30) as stack,
        call.calling(stack.address, generate, make_generate()),
    ):
        handle = (await stack.added()).handle
        await send_until_aborted(stack, handle)
        await stack.check_nothing_is_left()
        status = await call.status()
    assert b"grpc-status\x018" in status  # RESOURCE_EXHAUSTED
    assert b"does not read" in status.replace(b"%20", b" ")


async def test_an_http_client_that_never_reads_lets_go_of_what_it_held() -> None:
    settings = {"client_stall_timeout": STALL_S, "max_unread_tokens": 1 << 30}
    async with make_http(lambda add: (), **settings) as http:
        stack = http.stack
        _, port = str(http.raw.base_url).removeprefix("http://").rstrip("/").split(":")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port), limit=1024)
        body = json.dumps({"model": MODEL, "prompt": "Hi", "stream": True}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        )
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        await stack.added()
        await send_until_aborted(stack, stack.scheduler.added[0].handle)
        await stack.check_nothing_is_left()  # while the client is there still
        writer.close()
        del reader


async def test_a_client_that_pauses_gets_everything() -> None:
    async with make_stack(client_stall_timeout=60, max_unread_tokens=1 << 30) as stack:
        call = stack.client.Generate(make_generate())
        handle = (await stack.added()).handle
        for _ in range(100):
            stack.scheduler.send(step((handle, 0, RUN)))
            await asyncio.sleep(0.002)
        stack.scheduler.send(step(**finished(handle)))
        assert await num_tokens(call) == 100 * len(RUN)


async def num_tokens(call: AsyncIterator[object]) -> int:
    return sum([len(output.token_ids) async for answer in call for output in answer.outputs])  # type: ignore[attr-defined]

"""Clients that do not read lose their streams and what they held; no other client notices."""

import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.router.fakes import finished, ids_of, step
from tests.router.openai.clients import MODEL, make_http
from tests.router.stack import Stack, make_generate, make_stack
from tests.waiting import EVENT_S

STALL_S = 0.5
RUN = ids_of(" Paris") * 3000


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

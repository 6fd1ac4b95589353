"""A stream is written by a task of its own, of which the coroutines around it notice nothing."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Awaitable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from signalbox_rpc.interceptors import error_interceptor
from signalbox_rpc.interceptors.call_handlers import Context, wrap
from signalbox_rpc.telemetry import logs
from tests.rpc.echo import KINDS, Echo, call, serving, text
from tests.waiting import run_ready_tasks


async def test_a_cancelled_stream_has_ended_before_what_is_around_it() -> None:
    ended = []

    async def stream(_request: StringValue, _context: Context) -> AsyncIterator[StringValue]:
        try:
            while True:
                yield StringValue()
        finally:
            await run_ready_tasks()
            ended.append("stream")

    async def around(call: Awaitable[Any], _context: Context) -> Any:
        try:
            return await call
        finally:
            ended.append("interceptor")

    async def write(_response: StringValue) -> None:
        await asyncio.sleep(0)

    handler = wrap(grpc.unary_stream_rpc_method_handler(stream), around)
    running = asyncio.create_task(handler.unary_stream(None, SimpleNamespace(write=write)))
    await run_ready_tasks()
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert ended == ["stream", "interceptor"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_log_line_of_a_handler_that_fails_names_its_request(kind: str) -> None:
    def fail(_text: str) -> str:
        logs.begin_request("mine", "")
        raise KeyError("why")

    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logs.formatter("router", "text"))
    logger = logging.getLogger(error_interceptor.__name__)
    logger.addHandler(handler)
    try:
        async with serving(Echo(fail)) as (_, channel):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(channel, kind, text("a"))
    finally:
        logger.removeHandler(handler)
    assert f"{kind} failed request_id=mine\n" in handler.stream.getvalue()

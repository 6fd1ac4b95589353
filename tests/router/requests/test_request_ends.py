"""Requests that end early, by their client or by the clock, are aborted and leave nothing."""

import asyncio
import contextlib

import grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signalbox_protos.inference.v1 import inference_pb2_grpc
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.requests.api_request import MAX_TIMEOUT_NS, timeout_ns
from tests.grpc_errors import code_of
from tests.router.fakes import (
    finished,
    ids_of,
    step,
)
from tests.router.stack import Stack, make_generate, make_stack
from tests.waiting import EVENT_S, with_longer_deadlines

StatusCode = grpc.StatusCode


async def test_cancelling_aborts() -> None:
    async with make_stack(lambda add: [step((add.handle, 0, ids_of("x")))]) as stack:
        call = stack.client.Generate(make_generate())
        async for _ in call:
            break
        call.cancel()
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.aborted))
        assert stack.scheduler.aborted == [stack.scheduler.added[0].handle]


async def test_a_client_that_disconnects_aborts(stack: Stack) -> None:
    channel = grpc.aio.insecure_channel(stack.address, options=[("x", 1)])
    call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(make_generate())
    reading = asyncio.ensure_future(anext(aiter(call)))
    await stack.added()
    await channel.close()
    await stack.scheduler.wait_until(lambda: bool(stack.scheduler.aborted))
    await asyncio.gather(reading, return_exceptions=True)


async def test_a_deadline_travels_and_aborts(stack: Stack) -> None:
    added = stack.scheduler.added

    async def is_told(deadline_s: float) -> bool:
        call = aiter(stack.client.Generate(make_generate(), timeout=deadline_s))
        assert await code_of(anext(call)) is StatusCode.DEADLINE_EXCEEDED
        # What is left of it; gRPC rounds up, and reads a coarse clock.
        return any(deadline_s / 2 < one.timeout_ns / 1e9 < deadline_s + 1 for one in added)

    await with_longer_deadlines(is_told)
    await stack.check_nothing_is_left()
    handles = {one.handle for one in added}
    await stack.scheduler.wait_until(lambda: handles == set(stack.scheduler.aborted))


async def test_a_deadline_of_a_millisecond_leaves_nothing(stack: Stack) -> None:
    for _ in range(20):
        call = aiter(stack.client.Generate(make_generate(), timeout=0.001))
        assert await code_of(anext(call)) is StatusCode.DEADLINE_EXCEEDED
    await stack.check_nothing_is_left()
    added = {add.handle for add in stack.scheduler.added}
    await stack.scheduler.wait_until(lambda: added == set(stack.scheduler.aborted))


async def test_a_deadline_beyond_what_the_wire_holds_is_no_deadline() -> None:
    assert timeout_ns(lambda: 99_999_999 * 3600.0) == MAX_TIMEOUT_NS
    assert scheduler_pb2.Request(timeout_ns=MAX_TIMEOUT_NS).timeout_ns == MAX_TIMEOUT_NS


async def test_a_client_that_does_not_read_is_aborted_and_one_that_reads_is_not() -> None:
    async with make_stack(max_unread_tokens=50_000) as stack:
        reader = aiter(stack.client.Generate(make_generate(request_id="reads")))
        call = stack.client.Generate(make_generate(request_id="does not"))
        await stack.added(2)
        handles = {add.request_id: add.handle for add in stack.scheduler.added}
        run = ids_of(" Paris") * 1_000
        num_sent, num_read = 0, 0
        async with asyncio.timeout(EVENT_S):
            while not stack.scheduler.aborted:
                stack.scheduler.send(step(*((handle, 0, run) for handle in handles.values())))
                num_sent += len(run)
                while num_read < num_sent:
                    num_read += sum(len(one.token_ids) for one in (await anext(reader)).outputs)
        assert stack.scheduler.aborted == [handles["does not"]]
        stack.scheduler.send(step(**finished(handles["reads"])))
        rest = [len(one.token_ids) async for answer in reader for one in answer.outputs]
        assert (num_read, sum(rest)) == (num_sent, 0)
        call.cancel()


@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["cancel", "finish", "deadline"]), min_size=1, max_size=12))
def test_requests_that_end_in_any_way_leave_nothing(ends: list[str]) -> None:
    async def run() -> None:
        async with make_stack() as stack:
            await asyncio.gather(*(end_one(stack, f"r{i}", how) for i, how in enumerate(ends)))
            await stack.check_nothing_is_left()
            finished_ids = {f"r{i}" for i, how in enumerate(ends) if how == "finish"}
            await stack.scheduler.wait_until(
                lambda: (
                    set(stack.scheduler.aborted)
                    == {a.handle for a in stack.scheduler.added if a.request_id not in finished_ids}
                )
            )

    async def end_one(stack: Stack, request_id: str, how: str) -> None:
        request = make_generate(request_id=request_id)
        call = stack.client.Generate(request, timeout=0.2 if how == "deadline" else None)
        names = stack.scheduler.added
        if how != "deadline":  # which may pass before the request is added
            await stack.scheduler.wait_until(
                lambda: any(add.request_id == request_id for add in names)
            )
        if how == "finish":
            handle = next(add.handle for add in names if add.request_id == request_id)
            stack.scheduler.send(step((handle, 0, ids_of("x")), **finished(handle)))
        elif how == "cancel":
            call.cancel()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for _ in call:
                pass

    asyncio.run(run())

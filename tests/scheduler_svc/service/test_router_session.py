"""A router's stream over its bounded buffer."""

import asyncio

import pytest

from signalbox_contract.errors import InvalidArgument, ResourceExhausted
from signalbox_contract.request import Request
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.updates import RequestUpdates
from signalbox_scheduler.service.router_session import HEARTBEAT, MODEL_CHANGED, Session
from tests.scheduler_svc.make import join_worker, make_cluster
from tests.waiting import run_ready_tasks


def make_request(request_id: str, *, handle: int) -> Request:
    return Request(
        handle=handle,
        request_id=request_id,
        prompt_token_ids=[1, 2],
        params=SamplingParams(),
        max_tokens=4,
    )


async def test_a_router_that_does_not_read_loses_its_requests_and_then_its_stream() -> None:
    cluster = make_cluster()
    join_worker(cluster)
    session = Session(cluster.requests, max_messages=2)
    session.add(make_request("a", handle=1), now=0.0)
    for _ in range(3):
        session.send(RequestUpdates())
    assert len(cluster.requests) == 1, "no request ends amid a `send_updates`"
    await asyncio.sleep(0)
    assert not len(cluster.requests)
    cluster.check()
    with pytest.raises(ResourceExhausted, match="does not read"):
        session.add(make_request("b", handle=2), now=0.0)
    session.end()
    with pytest.raises(ResourceExhausted, match="does not read"):
        await session.next_message()


async def test_changes_of_the_model_are_one_message_while_the_router_does_not_read() -> None:
    cluster = make_cluster()
    session = Session(cluster.requests, max_messages=2)
    cluster.watchers[session.model_changed] = None
    for _ in range(3):
        cluster.tell_watchers()
    session.end()
    assert await session.next_message() is MODEL_CHANGED
    assert await session.next_message() is None


async def test_heartbeats_are_one_message_while_the_router_does_not_read() -> None:
    session = Session(make_cluster().requests, max_messages=2)
    beating = asyncio.create_task(session.beat(interval_s=0.0))
    for _ in range(5):
        await run_ready_tasks()
    beating.cancel()
    session.end()
    assert await session.next_message() is HEARTBEAT
    assert await session.next_message() is None


async def test_what_waits_is_sent_before_the_end() -> None:
    cluster = make_cluster()
    session = Session(cluster.requests, max_messages=2)
    session.send(RequestUpdates(handles=[1]))
    session.end()
    message = await session.next_message()
    assert isinstance(message, RequestUpdates)
    assert message.handles == [1]
    assert await session.next_message() is None


async def test_a_handle_that_is_live_is_refused() -> None:
    cluster = make_cluster()
    join_worker(cluster)
    session = Session(cluster.requests, max_messages=2)
    session.add(make_request("a", handle=1), now=0.0)
    with pytest.raises(InvalidArgument, match="handle"):
        session.add(make_request("b", handle=1), now=0.0)
    session.abort_all()
    assert not len(cluster.requests)

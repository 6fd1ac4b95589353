"""The turns of a session at a router before two schedulers of its model."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.schedulers import scheduler_client
from signalbox_router.schedulers.session_routes import SPARE_REQUESTS
from tests.ports import free_port
from tests.router.apis.inference.test_chat import CALL, TEMPLATE, writing
from tests.router.apis.openai.test_answers import TOOL
from tests.router.fakes import FakeScheduler, make_files, request_finished, step
from tests.router.stack import Outputs, text_of
from tests.router.test_several_models import HI, Both, serving
from tests.waiting import eventually

UNAVAILABLE = 14


def replica() -> FakeScheduler:
    scheduler = FakeScheduler(writing("ok"), port=free_port())
    scheduler.files, scheduler.max_model_len = make_files(chat_template=TEMPLATE), 2048
    return scheduler


def never(add: scheduler_pb2.Request) -> Outputs:
    return ()


def draining(add: scheduler_pb2.Request) -> Outputs:
    end = request_finished(add.handle, code=UNAVAILABLE, message="the scheduler is draining")
    return [step(requests=[end])]


async def turn(both: Both, session: str = "a") -> FakeScheduler:
    """Makes a turn, and returns the scheduler that it went to."""
    before = [len(one.added) for one in both.schedulers]
    assert text_of(await both.stack.generate(session=session)) == "ok"
    (chosen,) = [
        one for one, number in zip(both.schedulers, before, strict=True) if len(one.added) > number
    ]
    return chosen


@contextlib.asynccontextmanager
async def busy(
    both: Both, scheduler: FakeScheduler, number: int, session: str
) -> AsyncIterator[None]:
    """Holds live requests of a session at its scheduler."""
    script, scheduler.script = scheduler.script, never
    schedulers, before = both.stack.router.schedulers, both.stack.router.schedulers.num_live
    expected = len(scheduler.added) + number
    held = [asyncio.create_task(both.stack.generate(session=session)) for _ in range(number)]
    await scheduler.wait_until(lambda: len(scheduler.added) == expected)
    scheduler.script = script
    try:
        yield
    finally:
        for one in held:
            one.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        await eventually(lambda: schedulers.num_live == before)


async def test_turns_go_to_the_scheduler_that_had_the_session() -> None:
    async with serving(replica(), replica()) as both:
        home = await turn(both)
        async with busy(both, home, 2, "a"):
            assert await turn(both) is home
            other = await turn(both, session="")
            assert other is not home, "a request of no session goes where the load is least"
        assert await turn(both) is home


async def test_two_routers_choose_the_same_scheduler() -> None:
    first, second = replica(), replica()
    async with serving(first, second) as both:
        here = [await turn(both, session=str(number)) for number in range(8)]
    async with serving(first, second) as both:
        there = [await turn(both, session=str(number)) for number in range(8)]
    assert here == there and len(set(here)) == 2


async def test_an_overloaded_scheduler_loses_the_session_and_does_not_get_it_back() -> None:
    async with serving(replica(), replica()) as both:
        home = await turn(both)
        async with busy(both, home, SPARE_REQUESTS, "a"):
            assert await turn(both) is home
            async with busy(both, home, 1, "a"):
                assert await turn(both) is not home
        assert await turn(both) is not home, "its prefix is at the other one now"


async def test_a_session_goes_on_elsewhere_while_its_scheduler_is_lost_and_stays_there() -> None:
    async with serving(replica(), replica()) as both:
        homes = {str(number): await turn(both, str(number)) for number in range(12)}
        home = homes["0"]
        of_home = [session for session, one in homes.items() if one is home]
        assert len(of_home) > 1
        schedulers = both.stack.router.schedulers
        await home.stop()
        await eventually(lambda: schedulers.num_serving == 1)
        other = await turn(both, of_home[0])
        assert other is not home
        await home.start()
        await eventually(lambda: schedulers.num_serving == 2)
        assert await turn(both, of_home[0]) is other
        for session, before in homes.items():
            if session != of_home[0]:
                assert await turn(both, session) is before


@pytest.mark.parametrize("has_announced", [True, False])
async def test_a_scheduler_that_drains_gives_its_sessions_up(has_announced: bool) -> None:
    async with serving(replica(), replica()) as both:
        home = await turn(both)
        (other,) = [one for one in both.schedulers if one is not home]
        if has_announced:
            home.has_worker = False
            home.say_model_changed()
            await eventually(lambda: both.stack.router.schedulers.num_serving == 1)
        else:  # the router hears of it from a refusal
            home.script = draining
        assert text_of(await both.stack.generate(session="a")) == "ok"
        assert len(other.added) == 1
        home.script = writing("ok")
        assert await turn(both) is other


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the time after which the end of an answer is told alone."""
    monkeypatch.setattr(scheduler_client, "PAUSE_S", 0.01)


async def test_the_end_of_a_turn_is_told_with_the_next_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_client, "PAUSE_S", 3600.0)
    async with serving(replica()) as one:
        (scheduler,) = one.schedulers
        await turn(one, session="a")
        assert not scheduler.paused
        await turn(one, session="b")
        (paused,) = scheduler.paused
        assert paused.session == scheduler.added[0].session


@pytest.mark.usefixtures("soon")
async def test_the_scheduler_is_told_how_each_turn_has_ended() -> None:
    async with serving(replica(), replica()) as both:
        home = await turn(both)
        home.script = writing(CALL)
        await both.post(
            "/v1/chat/completions", messages=HI, tools=[TOOL], prompt_cache_key="a", stream=True
        )
        home.script = writing("ok")
        await both.post("/v1/chat/completions", messages=HI, tools=[TOOL], prompt_cache_key="a")
        await home.wait_until(lambda: len(home.paused) == 3)
        assert [pause.called_tool for pause in home.paused] == [False, True, False]
        assert {pause.session for pause in home.paused} == {home.added[0].session}


@pytest.mark.usefixtures("soon")
async def test_nothing_is_said_of_requests_without_a_session_or_without_an_end() -> None:
    async with serving(replica()) as one:
        (scheduler,) = one.schedulers
        await turn(one, session="")
        async with busy(one, scheduler, 1, "a"):
            pass
        await turn(one, session="b")
        await scheduler.wait_until(lambda: bool(scheduler.paused))
        assert [pause.session for pause in scheduler.paused] == [scheduler.added[-1].session]


async def test_one_scheduler_remembers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(replica()) as one:
        monkeypatch.setattr(one.stack.router.schedulers, "_routes", None)
        await turn(one)
        await turn(one)

"""Calls that leave work under way let others run, and are finished in order."""

import asyncio
import sys
import threading

import pytest

from signalbox_worker.lease.execution_thread import ExecutionThread, Unfinished
from tests.waiting import EVENT_S


class Later(Unfinished[str]):
    """Work that is done when the test says so."""

    def __init__(self, name: str, done: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._done = done
        self._loop = loop

    def wait(self) -> None:
        asyncio.run_coroutine_threadsafe(self._done.wait(), self._loop).result(timeout=EVENT_S)

    def finish(self) -> str:
        return self._name


async def test_threads_change_often_once_a_call_leaves_work_under_way() -> None:
    thread, loop, done = ExecutionThread(), asyncio.get_running_loop(), asyncio.Event()
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(5e-3)
        await asyncio.wait_for(thread.submit(lambda: "at once"), EVENT_S)
        assert sys.getswitchinterval() == pytest.approx(5e-3)
        under_way = thread.submit(lambda: Later("later", done, loop))
        done.set()
        await asyncio.wait_for(under_way, EVENT_S)
        assert sys.getswitchinterval() == pytest.approx(5e-4)
    finally:
        sys.setswitchinterval(before)
        thread.close()


async def test_calls_run_while_others_are_under_way_and_end_in_order() -> None:
    thread, loop, done = ExecutionThread(), asyncio.get_running_loop(), asyncio.Event()
    try:
        slow = thread.submit(lambda: Later("slow", done, loop))
        next_one = thread.submit(lambda: Later("next", done, loop))
        assert await asyncio.wait_for(thread.submit(lambda: "at once"), EVENT_S) == "at once"
        assert not slow.done()
        done.set()
        assert await asyncio.wait_for(next_one, EVENT_S) == "next"
        assert slow.done()
        assert await slow == "slow"
    finally:
        thread.close()


async def test_an_error_of_either_part_reaches_who_waits() -> None:
    class Failing(Unfinished[str]):
        def wait(self) -> None:
            raise RuntimeError("the device is gone")

        def finish(self) -> str:
            raise ValueError("the cache is lost")

    def fail() -> str:
        raise TypeError("no such step")

    thread = ExecutionThread()
    try:
        with pytest.raises(TypeError, match="no such step"):
            await asyncio.wait_for(thread.submit(fail), EVENT_S)
        with pytest.raises(ValueError, match="the cache is lost"):
            await asyncio.wait_for(thread.submit(Failing), EVENT_S)
    finally:
        thread.close()


def test_without_an_event_loop_futures_are_waited_for_and_closing_ends_all_calls() -> None:
    done, ended = threading.Event(), list[str]()

    class Slow(Unfinished[str]):
        def wait(self) -> None:
            assert done.wait(EVENT_S)

        def finish(self) -> str:
            return "slow"

    thread = ExecutionThread()
    slow = thread.start(Slow)
    assert thread.start(lambda: "at once").result(EVENT_S) == "at once"
    assert not slow.done() and not slow.cancel()
    done.set()
    assert slow.result(EVENT_S) == "slow"
    thread.start(lambda: ended.append("last"))
    thread.close(wait=True)
    assert ended == ["last"]


def test_a_closing_that_waits_finishes_what_is_under_way() -> None:
    may_end, closed = threading.Event(), threading.Event()

    class Slow(Unfinished[bool]):
        def wait(self) -> None:
            assert may_end.wait(EVENT_S)

        def finish(self) -> bool:
            return not closed.is_set()

    def close() -> None:
        thread.close(wait=True)
        closed.set()

    thread = ExecutionThread()
    results = [thread.start(Slow) for _ in range(2)]
    closing = threading.Thread(target=close)
    closing.start()
    may_end.set()
    closing.join(EVENT_S)
    assert closed.is_set()
    assert [result.result(0) for result in results] == [True, True]

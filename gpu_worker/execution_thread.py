"""The worker's one execution thread: calls run in order, results are posted to the event loop.

The event loop only moves messages; whatever touches the device runs here. A call may leave work
under way on the device (`Unfinished`): a second thread does nothing but wait for that, and the call
is finished here, between others. The threads are daemons, so that native code that does not return
cannot keep the process from leaving.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

IDLE_S = 0.04
"""Seconds without a call after which the thread does a part of its chore."""


class Unfinished(Generic[T]):
    """The result of a call whose work is not finished."""

    __slots__ = ()

    def wait(self) -> None:
        """Blocks until the work is done; on any thread."""
        raise NotImplementedError

    def finish(self) -> T:
        """Returns the result, or raises what the call should have raised."""
        raise NotImplementedError


_UnderWay = tuple[Callable[[], None], Callable[[], None]]
"""Two functions: one waits for a call's work, the other finishes the call."""


class ExecutionThread:
    """Runs one call at a time, in the order of submission."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._under_way: SimpleQueue[_UnderWay | None] = SimpleQueue()
        self._waiting: threading.Thread | None = None  # until a call leaves work unfinished
        self._chore: Callable[[], bool] | None = None
        self._thread = threading.Thread(target=self._run, name="execution", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Queues a call; cancelling the future does not keep the call from running."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put(partial(_perform, call, loop, future))
        return future

    def submit_in_parts(self, call: "Callable[[], T | Unfinished[T]]") -> "asyncio.Future[T]":
        """Queues a call that may be finished later; others run meanwhile."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put(partial(self._perform_first, call, loop, future))
        return future

    def when_idle(self, chore: Callable[[], bool]) -> None:
        """Has `chore` called again and again while no call comes, until it returns False.

        To be called on this thread; takes the place of a chore that is not done.
        """
        self._chore = chore

    def close(self) -> None:
        """Ends the thread after the queued calls; does not wait for that."""
        self._calls.put(None)
        self._under_way.put(None)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # or it holds the last call's objects while waiting for the next

    def _next(self) -> Callable[[], None] | None:
        while self._chore is not None:
            try:
                return self._calls.get(timeout=IDLE_S)
            except Empty:
                if not self._chore():
                    self._chore = None
        return self._calls.get()

    def _perform_first(
        self,
        call: "Callable[[], T | Unfinished[T]]",
        loop: asyncio.AbstractEventLoop,
        future: "asyncio.Future[T]",
    ) -> None:
        try:
            outcome = call()
        except BaseException as error:
            _post_result(loop, partial(_set_exception, future, error))
            return
        if not isinstance(outcome, Unfinished):
            _post_result(loop, partial(_set_result, future, outcome))
            return
        if self._waiting is None:
            self._waiting = threading.Thread(target=self._wait, name="waiting", daemon=True)
            self._waiting.start()
        self._under_way.put((outcome.wait, partial(_perform, outcome.finish, loop, future)))

    def _wait(self) -> None:
        """Waits for unfinished work, in order, and queues the calls that finish it."""
        while (one := self._under_way.get()) is not None:
            wait, finish = one
            with contextlib.suppress(Exception):  # which finishing will meet again
                wait()
            self._calls.put(finish)
            del one, wait, finish


def _perform(
    call: Callable[[], T], loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T]"
) -> None:
    set_outcome: Callable[[], None]
    try:
        set_outcome = partial(_set_result, future, call())
    except BaseException as error:  # the future's reader decides
        set_outcome = partial(_set_exception, future, error)
    _post_result(loop, set_outcome)


def _post_result(loop: asyncio.AbstractEventLoop, set_outcome: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed
        loop.call_soon_threadsafe(set_outcome)


def _set_result(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

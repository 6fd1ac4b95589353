"""The worker's one execution thread: calls run in order, results go to futures.

Whatever touches the device runs here, so that an event loop only moves messages. A call may leave
work under way on the device (`Unfinished`): a second thread does nothing but wait for that, and the
call is finished here, between others. The threads are daemons, so that native code that does not
return cannot keep the process from leaving.
"""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

_SWITCH_INTERVAL_S = 5e-4
"""Wait of a thread for Python's lock beside one that computes. A call that launches work gives the
lock up at each wait and copy; within Python's 5 ms the device would run out of work."""


class Unfinished(Generic[T]):
    """The result of a call whose work is not finished."""

    __slots__ = ()

    def wait(self) -> None:
        """Blocks until the work is done; on any thread."""
        raise NotImplementedError

    def finish(self) -> T:
        """Returns the result, or raises what the call should have raised."""
        raise NotImplementedError


class _LoopFuture(Generic[T]):
    """Completes a future of an event loop from another thread."""

    __slots__ = ("_future",)

    def __init__(self, future: "asyncio.Future[T]") -> None:
        self._future = future

    def set_result(self, result: T) -> None:
        self._post(partial(self._future.set_result, result))

    def set_exception(self, error: BaseException) -> None:
        self._post(partial(self._future.set_exception, error))

    def _post(self, complete: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._future.get_loop().call_soon_threadsafe(self._unless_done, complete)

    def _unless_done(self, complete: Callable[[], None]) -> None:
        if not self._future.done():
            complete()


Call = Callable[[], T | Unfinished[T]]
_Receiver = Future[T] | _LoopFuture[T]
_UnderWay = tuple[Callable[[], None], Callable[[], None]]
"""Two functions: one waits for a call's work, the other finishes the call."""


class ExecutionThread:
    """Runs one call at a time, in the order of submission."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._under_way: SimpleQueue[_UnderWay | None] = SimpleQueue()
        self._waiting: threading.Thread | None = None  # until a call leaves work unfinished
        self._thread = threading.Thread(target=self._run, name="execution", daemon=True)
        self._thread.start()

    def submit(self, call: Call[T]) -> "asyncio.Future[T]":
        """Queues a call of a task; cancelling the future does not keep the call from running.

        If the call leaves work unfinished, others run meanwhile.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put(partial(self._perform, call, _LoopFuture(future)))
        return future

    def start(self, call: Call[T]) -> Future[T]:
        """Queues a call of a thread without an event loop; the future cannot be cancelled."""
        future = Future[T]()
        future.set_running_or_notify_cancel()
        self._calls.put(partial(self._perform, call, future))
        return future

    def close(self, *, wait: bool = False) -> None:
        """Ends the thread after the queued calls.

        Calls with work under way are finished if `wait` is set, else they never are.
        """
        self._calls.put(self._finish_all if wait else None)
        if not wait:
            self._under_way.put(None)
        elif threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # or it holds the last call's objects while waiting for the next

    def _perform(self, call: Call[T], receiver: _Receiver[T]) -> None:
        try:
            outcome = call()
        except BaseException as error:  # the future's reader decides
            receiver.set_exception(error)
            return
        if not isinstance(outcome, Unfinished):
            receiver.set_result(outcome)
            return
        if self._waiting is None:
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL_S))
            self._waiting = threading.Thread(target=self._wait, name="waiting", daemon=True)
            self._waiting.start()
        self._under_way.put((outcome.wait, partial(self._perform, outcome.finish, receiver)))

    def _finish_all(self) -> None:
        """Ends the thread once the calls with work under way are finished."""
        self._under_way.put(None)
        if self._waiting is not None:
            self._waiting.join()
        self._calls.put(None)

    def _wait(self) -> None:
        """Waits for unfinished work, in order, and queues the calls that finish it."""
        while (one := self._under_way.get()) is not None:
            wait, finish = one
            with contextlib.suppress(Exception):  # which finishing will meet again
                wait()
            self._calls.put(finish)
            del one, wait, finish

"""The worker's one execution thread: calls run in order, results are posted to the event loop.

The event loop only moves messages; whatever touches the device runs here. The thread is a daemon,
so that native code that does not return cannot keep the process from leaving.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class ExecutionThread:
    """Runs one call at a time, first come first served."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="execution", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Queues a call; cancelling the future does not keep the call from running."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put(partial(_perform, call, loop, future))
        return future

    def close(self) -> None:
        """Lets the thread end after the calls that are queued; does not wait for it."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # or it holds the last call's objects while waiting for the next


def _perform(
    call: Callable[[], T], loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T]"
) -> None:
    settle: Callable[[], None]
    try:
        settle = partial(_set_result, future, call())
    except BaseException as error:  # whoever awaits the future decides
        settle = partial(_set_exception, future, error)
    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to ask
        loop.call_soon_threadsafe(settle)


def _set_result(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

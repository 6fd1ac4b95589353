"""Lets Ctrl-C in where the engine waits, and nowhere else: half a change would break its state."""

import signal
import threading
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any


class Interrupts:
    """Blocks in which SIGINT is noted; `wait`, or the end of the outermost block, delivers it.

    Only the main thread receives signals; in another thread a block does nothing.
    """

    def __init__(self) -> None:
        self._handler: Any = None
        self._depth = 0
        self._is_waiting = self._is_noted = False

    def __enter__(self) -> None:
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler, self._is_noted = handler, False
                signal.signal(signal.SIGINT, self._receive)
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._handler is not None:
            handler, self._handler = self._handler, None
            signal.signal(signal.SIGINT, handler)
            self._deliver(handler)

    def wait(self, future: Future[Any]) -> None:
        """Waits for a future; an interrupt ends the wait, unless its handler returns."""
        self._is_waiting = True
        try:
            self._deliver(self._handler)
            wait([future])
        finally:
            self._is_waiting = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._is_noted = True
        if self._is_waiting:
            self._deliver(self._handler)

    def _deliver(self, handler: Any) -> None:
        if self._is_noted:
            self._is_noted = False
            handler(signal.SIGINT, None)

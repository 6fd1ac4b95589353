"""Sets when Python's garbage collector runs in a service.

Nearly all objects are freed by their reference counts. With Python's defaults the collector takes 2
% of a service's CPU. A full collection holds the interpreter's lock: for 0.2 s while a conversation
of 65,536 turns, whose objects are all alive, is rendered. Code that makes that many objects
therefore delays full collections.
"""

import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

YOUNG_OBJECTS = 20_000
"""Allocations minus deallocations between two collections of the youngest generation."""
MAX_PUT_OFF_S = 5.0
"""Seconds for which overlapping blocks may delay full collections. Blocks that begin later do not
delay them, so a client that keeps such blocks running cannot keep garbage alive."""
_NEVER = 1 << 30


@dataclass(slots=True)
class _PutOff:
    """The blocks that delay full collections now."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    num_blocks: int = 0
    since: float = 0.0
    thresholds: tuple[int, int, int] = (0, 0, 0)
    """The collector's thresholds outside of all blocks."""

    def begin(self) -> None:
        with self.lock:
            if not self.num_blocks:
                self.since = time.monotonic()
                self.thresholds = gc.get_threshold()
                gc.set_threshold(*self.thresholds[:2], _NEVER)
            elif time.monotonic() - self.since > MAX_PUT_OFF_S:
                gc.set_threshold(*self.thresholds)
            self.num_blocks += 1

    def end(self) -> None:
        with self.lock:
            self.num_blocks -= 1
            if not self.num_blocks:
                gc.set_threshold(*self.thresholds)


_PUT_OFF = _PutOff()


def freeze_startup_objects() -> None:
    """Excludes objects that live as long as the process from collections, and makes collections
    rare."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)


@contextlib.contextmanager
def without_full_collections() -> Iterator[None]:
    """Delays full collections while the block runs; for blocks whose objects die soon after."""
    _PUT_OFF.begin()
    try:
        yield
    finally:
        _PUT_OFF.end()

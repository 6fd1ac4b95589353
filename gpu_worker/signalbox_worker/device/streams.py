"""The interface of a device's queues: streams of work, events between them, pinned memory.

A stream does what was enqueued in order, and not before the events that it was told to wait for;
nothing else orders two streams. This is CUDA's model, behind one seam: a CPU does everything at
once, and a test's stand-in does it as late and in as odd an order as the events allow.
"""

import time
from collections.abc import Callable
from typing import Protocol


class Event(Protocol):
    """A place in a stream; it is done when all work enqueued before it is done."""

    @property
    def is_done(self) -> bool: ...

    def wait(self) -> None:
        """Blocks the calling thread until it is done."""
        ...

    def ns_since(self, earlier: "Event") -> int:
        """Returns nanoseconds from `earlier` to this event; both are timed and done, on the same
        device."""
        ...


class Stream(Protocol):
    """A queue of work."""

    def run(self, work: Callable[[], None]) -> None:
        """Enqueues the device work that `work` starts; `work` may be called at once."""
        ...

    def record(self, *, is_timed: bool = False) -> Event:
        """Marks the end of what has been enqueued so far.

        Args:
            is_timed: whether `ns_since` will be asked, which makes an event dearer.
        """
        ...

    def wait(self, event: Event) -> None:
        """Holds back what is enqueued from now on until `event` is done; blocks no thread."""
        ...


class Streams(Protocol):
    """The streams of one device, as its execution thread sees them."""

    @property
    def compute(self) -> Stream:
        """The stream on which models compute."""
        ...

    def new(self) -> Stream:
        """Makes a stream that waits for no other by itself."""
        ...

    def pin(self, address: int, num_bytes: int) -> None:
        """Keeps whole pages of RAM where they are, so that the device reads and writes them.

        Raises MemoryError where the system allows no more.
        """
        ...

    def unpin(self, address: int) -> None:
        """Ends `pin`; no copy of these pages may be under way."""
        ...

    def numa_node(self) -> int | None:
        """Returns the node of RAM that is next to the device; None if nothing says."""
        ...


class HostEvent:
    """An event of a CPU, which is done as soon as it is recorded."""

    is_done = True

    def __init__(self, *, is_timed: bool) -> None:
        self.at_ns = time.perf_counter_ns() if is_timed else None

    def wait(self) -> None:
        """Returns at once: the event is done."""

    def ns_since(self, earlier: Event) -> int:
        assert isinstance(earlier, HostEvent)
        assert self.at_ns is not None
        assert earlier.at_ns is not None
        return self.at_ns - earlier.at_ns


class HostStream:
    """A stream of a CPU, whose work is done when it is enqueued."""

    def run(self, work: Callable[[], None]) -> None:
        work()

    def record(self, *, is_timed: bool = False) -> HostEvent:
        return HostEvent(is_timed=is_timed)

    def wait(self, event: Event) -> None:
        """Does nothing: the event's work is done."""


class HostStreams:
    """The streams of a CPU, for which no memory is pinned."""

    def __init__(self) -> None:
        self.compute = HostStream()

    def new(self) -> HostStream:
        return HostStream()

    def pin(self, address: int, num_bytes: int) -> None:
        """Does nothing: the CPU reaches every page."""

    def unpin(self, address: int) -> None:
        """Does nothing: no page was pinned."""

    def numa_node(self) -> int | None:
        return None

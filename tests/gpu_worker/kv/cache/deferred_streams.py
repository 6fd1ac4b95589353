"""Streams that do their work as late, and in as odd an order, as the events allow.

A model of CUDA's streams for tests on a CPU: what is enqueued waits until somebody lets it run.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import torch

from signalbox_worker.device.streams import Event, Streams
from signalbox_worker.kv.cache.cache_engine import CacheEngine


def make_engine(streams: Streams | None = None, **sizes: int) -> CacheEngine:
    sizes = {"num_gpu_blocks": 8, "num_cpu_blocks": 4, "block_bytes": 96} | sizes
    return CacheEngine(**sizes, device=torch.device("cpu"), streams=streams)


class DeferredEvent:
    """Done when its stream gets there."""

    def __init__(self, streams: "DeferredStreams", *, is_timed: bool) -> None:
        self._streams = streams
        self.is_timed = is_timed
        self.done_at_ns: int | None = None

    @property
    def is_done(self) -> bool:
        self._streams.run_some()
        return self.done_at_ns is not None

    def wait(self) -> None:
        while self.done_at_ns is None:
            assert self._streams.run_one(), "waits for what nothing will do"

    def ns_since(self, earlier: Event) -> int:
        assert isinstance(earlier, DeferredEvent)
        assert self.is_timed
        assert earlier.is_timed
        assert self.done_at_ns is not None
        assert earlier.done_at_ns is not None
        return self.done_at_ns - earlier.done_at_ns


@dataclass(slots=True)
class DeferredStream:
    streams: "DeferredStreams"
    queue: deque[tuple[str, Callable[[], None] | DeferredEvent]] = field(default_factory=deque)
    num_waits: int = 0

    def run(self, work: Callable[[], None]) -> None:
        self.queue.append(("run", work))

    def record(self, *, is_timed: bool = False) -> DeferredEvent:
        event = DeferredEvent(self.streams, is_timed=is_timed)
        self.queue.append(("record", event))
        return event

    def wait(self, event: Event) -> None:
        self.num_waits += 1
        assert isinstance(event, DeferredEvent)
        self.queue.append(("wait", event))

    def run_next(self) -> bool:
        """Does what is first in the queue; False if it must wait, or there is nothing."""
        if not self.queue:
            return False
        kind, item = self.queue[0]
        if isinstance(item, DeferredEvent):
            if kind == "wait" and item.done_at_ns is None:
                return False
            if kind == "record":
                item.done_at_ns = self.streams.now_ns
        else:
            item()
        self.queue.popleft()
        return True

    def run_all(self) -> None:
        """Goes as far as it can without any other stream."""
        while self.run_next():
            pass


class DeferredStreams:
    """A device of which `random` decides what comes next; without it, nothing runs by itself."""

    def __init__(self, random: Random | None = None) -> None:
        self.random = random
        self.now_ns = 0
        self.compute = DeferredStream(self)
        self.others: list[DeferredStream] = []
        self.pinned: dict[int, int] = {}

    def new(self) -> DeferredStream:
        self.others.append(DeferredStream(self))
        return self.others[-1]

    def pin(self, address: int, num_bytes: int) -> None:
        self.pinned[address] = num_bytes

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def numa_node(self) -> int | None:
        return None

    def run_some(self) -> None:
        if self.random is not None:
            for _ in range(self.random.choice([0, 0, 1, 3])):
                self.run_one()

    def run_one(self) -> bool:
        """Lets one stream, any that can, do one thing; False if none can."""
        streams = [self.compute, *self.others]
        if self.random is not None:
            self.random.shuffle(streams)
        self.now_ns += 1000
        return any(stream.run_next() for stream in streams)

    def run_all(self) -> None:
        while self.run_one():
            pass
        assert not any(stream.queue for stream in (self.compute, *self.others))


class ReadyStream:
    """A stream of work that is done when it is enqueued, beside others that are late."""

    def __init__(self, streams: DeferredStreams) -> None:
        self._streams = streams

    def run(self, work: Callable[[], None]) -> None:
        work()

    def record(self, *, is_timed: bool = False) -> DeferredEvent:
        event = DeferredEvent(self._streams, is_timed=is_timed)
        event.done_at_ns = self._streams.now_ns
        return event

    def wait(self, event: Event) -> None:
        event.wait()


class LateCopies:
    """A device that computes at once, and swaps only when somebody waits for it."""

    def __init__(self) -> None:
        self._deferred = DeferredStreams()
        self.compute = ReadyStream(self._deferred)
        self.pin, self.unpin = self._deferred.pin, self._deferred.unpin

    def new(self) -> DeferredStream:
        return self._deferred.new()

    def numa_node(self) -> int | None:
        return None

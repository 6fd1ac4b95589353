"""Passes frames to watchers, of which there are few and each may read slowly.

A frame of a source is a full picture, or what has changed since the source's frame before. A
watcher that falls behind loses the frames of a source that wait, and gets no others of it until a
full picture comes.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from signalbox_contract.errors import ResourceExhausted, RpcError

Frame = TypeVar("Frame")

MAX_WATCHERS = 16
MAX_WAITING = 10
"""Frames of a source that wait for a watcher, those of about a second."""
RETRY_AFTER_S = 10.0


class Watcher(Generic[Frame]):
    """The frames that wait for one watcher."""

    def __init__(self) -> None:
        self._frames: deque[tuple[str, Frame]] = deque()
        self._is_following: set[str] = set()
        self._error: RpcError | None = None
        self._news = asyncio.Event()

    def follows(self, source: str) -> bool:
        """Says whether the watcher can use a difference; else it needs a full picture."""
        return source in self._is_following

    def put(self, source: str, frame: Frame, *, is_full: bool = False) -> None:
        """Adds a frame, unless it is a difference from one that the watcher has not got."""
        if is_full:
            self.restart(source)
            self._is_following.add(source)
        elif source not in self._is_following:
            return
        elif sum(one == source for one, _ in self._frames) >= MAX_WAITING:
            self.restart(source)
            return
        self._frames.append((source, frame))
        self._news.set()

    def restart(self, source: str) -> None:
        """Drops what waits of a source, so that a full picture is needed."""
        self._is_following.discard(source)
        self._frames = deque(item for item in self._frames if item[0] != source)

    def end(self, error: RpcError) -> None:
        """Lets the watcher read what waits, and then the error."""
        self._error = error
        self._news.set()

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Yields the frames as they come. Raises the error of `end`."""
        while True:
            while self._frames:
                yield self._frames.popleft()[1]
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()


class Watchers(Generic[Frame]):
    """The watchers that there are, in the order in which they came."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher[Frame], None] = {}

    @contextmanager
    def joined(self) -> Iterator[Watcher[Frame]]:
        """Adds a watcher for as long as the context lasts. Raises ResourceExhausted."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise ResourceExhausted(f"{MAX_WATCHERS} clients watch already", RETRY_AFTER_S)
        watcher = Watcher[Frame]()
        self._watchers[watcher] = None
        try:
            yield watcher
        finally:
            del self._watchers[watcher]

    def __iter__(self) -> Iterator[Watcher[Frame]]:
        return iter(self._watchers)

    def __len__(self) -> int:
        return len(self._watchers)

    def end(self, error: RpcError) -> None:
        """Ends all watchers."""
        for watcher in self._watchers:
            watcher.end(error)

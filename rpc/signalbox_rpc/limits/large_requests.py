"""Bounds what large requests of a port take until they are parsed: bytes in memory, and threads."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from signalbox_contract.errors import ResourceExhausted
from signalbox_rpc.limits.garbage_collection import without_full_collections

MAX_PARSED_AT_ONCE = 2
"""Large requests that are parsed or converted at the same time; others wait."""
MAX_HELD_BYTES = 256 << 20
"""Bytes of large requests that are held at the same time, until they are parsed."""
RETRY_AFTER_S = 1.0
T = TypeVar("T")


class LargeRequests:
    """Counts and parses large requests; small ones are not counted."""

    def __init__(self, *, small_bytes: int, most_bytes: int = 0) -> None:
        """Makes the bounds of one port.

        Args:
            small_bytes: bytes of the longest request that is not counted.
            most_bytes: bytes of the longest request, which may exceed the bound if it is alone.
        """
        self._small = small_bytes
        self._most = max(MAX_HELD_BYTES, most_bytes)
        self._total = 0
        self._places = asyncio.Semaphore(MAX_PARSED_AT_ONCE)

    @contextmanager
    def account(self) -> Iterator[Callable[[int], None]]:
        """Yields a function that sets the number of bytes that a request has received.

        It raises ResourceExhausted if all requests together have more bytes than allowed.
        """
        held = 0

        def hold(num_bytes: int) -> None:
            nonlocal held
            if num_bytes <= self._small:
                return
            if self._total - held + num_bytes > self._most:
                raise ResourceExhausted("too many large requests are being read", RETRY_AFTER_S)
            self._total += num_bytes - held
            held = num_bytes

        try:
            yield hold
        finally:
            self._total -= held

    async def parse(self, work: Callable[[], T]) -> T:
        """Returns the result of `work`, which runs in a thread once fewer than the most others do.

        A thread cannot be cancelled, so the place is free when the thread has ended, even if the
        caller was cancelled before.
        """
        await self._places.acquire()
        parsing = asyncio.ensure_future(asyncio.to_thread(without_full_collections()(work)))
        parsing.add_done_callback(lambda _: self._places.release())
        return await asyncio.shield(parsing)

"""The life of a service's process: it serves until a signal comes, then drains, then ends."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol

logger = logging.getLogger(__name__)

YOUNG_OBJECTS = 20_000
"""Allocations, beyond deallocations, between two collections of the youngest."""


class Drains(Protocol):
    """A server, or several that end together."""

    def stop_serving(self) -> None: ...

    async def drain(self, *, grace_s: float) -> None: ...


async def run_until_signalled(
    server: Drains,
    *,
    grace_s: float,
    on_drain: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal exits at once with status 1.

    Args:
        grace_s: for `on_drain` and the calls that run, together.
        on_drain: awaited between NOT_SERVING and the closing of the listener.
    """
    _settle_garbage_collector()
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, signalled)
    await signalled.wait()
    ends_at = loop.time() + grace_s
    logger.info("draining for up to %.1f s", grace_s)
    server.stop_serving()
    if on_drain:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await on_drain()
    await server.drain(grace_s=max(0.0, ends_at - loop.time()))


def _settle_garbage_collector() -> None:
    """Keeps collections from walking what lives as long as the process, and makes them rare.

    Nearly everything dies by its reference count. With the defaults the collector takes 2 % of a
    service's CPU, and stops a worker that has loaded torch for tens of milliseconds at a time.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)


def _on_signal(signalled: asyncio.Event) -> None:
    if signalled.is_set():
        os._exit(1)
    signalled.set()

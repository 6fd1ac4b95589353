"""Runs a service's process: it serves until a signal comes, then drains, then ends."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol

from signalbox_rpc.limits import garbage_collection

logger = logging.getLogger(__name__)


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
        grace_s: seconds for `on_drain` and the running calls, together.
        on_drain: awaited between NOT_SERVING and the closing of the listener.
    """
    garbage_collection.freeze_startup_objects()
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


def _on_signal(signalled: asyncio.Event) -> None:
    if signalled.is_set():
        os._exit(1)
    signalled.set()

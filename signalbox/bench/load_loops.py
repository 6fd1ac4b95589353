"""Sends requests in a closed loop (N clients, one request after the other) or at given times.

An open loop shows how a server behaves that falls behind; a closed loop waits for the server.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from signalbox.bench.measurements import Measured, observe
from signalbox.bench.workload import BenchRequest


class RequestFailed(RuntimeError):
    """A request was refused or broke off.

    Args:
        reason: a short text that others share.
        message: what the server says.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(reason)
        self.message = " ".join(message.split())


class Send(Protocol):
    """Sends a request and yields the number of tokens in each message of its answer."""

    def __call__(self, ask: BenchRequest, measured: Measured, /) -> AsyncIterator[int]: ...


OnEnd = Callable[[], None]


async def closed_loop(
    send: Send,
    asks: Sequence[BenchRequest],
    *,
    concurrency: int,
    on_end: OnEnd = lambda: None,
    measured: Measured | None = None,
) -> Measured:
    """Sends all requests, `concurrency` at a time.

    Args:
        measured: receives the measurements; if this is cancelled, it has those so far.
    """
    if concurrency < 1:
        raise ValueError(f"--concurrency is {concurrency}; it must be at least 1")
    measured, pending = measured or Measured(), iter(asks)

    async def client() -> None:
        for ask in pending:
            await _one(send, ask, measured, None)
            on_end()

    with _timed(measured):
        await asyncio.gather(*(client() for _ in range(min(concurrency, len(asks)))))
    return measured


async def open_loop(
    send: Send,
    asks: Sequence[BenchRequest],
    at_s: Sequence[float],
    *,
    on_end: OnEnd = lambda: None,
    measured: Measured | None = None,
) -> Measured:
    """Sends each request at its time in seconds from now; `measured` as in `closed_loop`."""
    measured, start = measured or Measured(), time.perf_counter()

    async def client(ask: BenchRequest, due: float) -> None:
        await asyncio.sleep(due - time.perf_counter())
        await _one(send, ask, measured, due)
        on_end()

    clients = zip(asks, at_s, strict=True)
    with _timed(measured):
        await asyncio.gather(*(client(ask, start + due_s) for ask, due_s in clients))
    return measured


@contextmanager
def _timed(measured: Measured) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        measured.duration_s = time.perf_counter() - start


async def _one(send: Send, ask: BenchRequest, measured: Measured, due: float | None) -> None:
    try:
        await observe(send(ask, measured), measured, due=due)
    except RequestFailed as failure:
        measured.failures[reason := str(failure)] += 1
        measured.messages.setdefault(reason, failure.message)

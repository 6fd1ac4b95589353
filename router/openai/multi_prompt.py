"""Merges several generations into one stream, for a request with a list of prompts."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from router.requests.active_request import Update

MAX_WAITING_UPDATES = 1
"""Updates of each prompt that wait; later output is merged in its mailbox to fewer, larger ones."""


STARTED_TOGETHER = 16
"""Prompts that are started before the event loop gets a turn."""


class Part(NamedTuple):
    """The next update, and the position of the prompt that it belongs to."""

    position: int
    update: Update


async def merged(generations: Sequence[AsyncGenerator[Update]]) -> AsyncGenerator[Part]:
    """Yields updates as they arrive from any generation; closes all of them when it is closed.

    Raises the exception of the first generation that fails.
    """
    if len(generations) == 1:
        async with aclosing(generations[0]) as updates:
            async for update in updates:
                yield Part(0, update)
        return
    async with aclosing(_merged(generations)) as parts:
        async for part in parts:
            yield part


async def _merged(generations: Sequence[AsyncGenerator[Update]]) -> AsyncGenerator[Part]:
    queue: asyncio.Queue[Part | BaseException | None] = asyncio.Queue(
        MAX_WAITING_UPDATES * len(generations)
    )
    tasks = []
    try:
        for position, updates in enumerate(generations):
            tasks.append(asyncio.create_task(_read(position, updates, queue)))
            if len(tasks) % STARTED_TOGETHER == 0:
                await asyncio.sleep(0)
        num_running = len(tasks)
        while num_running:
            part = await queue.get()
            if part is None:
                num_running -= 1
            elif isinstance(part, BaseException):
                raise part
            else:
                yield part
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(
    position: int,
    updates: AsyncGenerator[Update],
    queue: "asyncio.Queue[Part | BaseException | None]",
) -> None:
    try:
        async with aclosing(updates):
            async for update in updates:
                await queue.put(Part(position, update))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)


async def first_and_rest(parts: AsyncGenerator[Part]) -> AsyncIterator[Part]:
    """Waits for the first part, so that an earlier failure is raised; returns the whole stream."""
    first = await anext(parts)

    async def all_parts() -> AsyncIterator[Part]:
        yield first
        async for part in parts:
            yield part

    return all_parts()

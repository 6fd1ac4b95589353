"""Merges several generations into one stream, for a request with a list of prompts."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from signalbox_router.requests.active_request import Update

MAX_WAITING_UPDATES = 1
"""Updates of each prompt that wait; later output is merged in its mailbox to fewer, larger ones."""


STARTED_TOGETHER = 16
"""Prompts that are started before the event loop gets a turn."""


def merged(generations: Sequence[AsyncGenerator[Update]]) -> AsyncGenerator[Update]:
    """Yields updates as they arrive from any generation; closes all of them when it is closed.

    Raises the exception of the first generation that fails.
    """
    return generations[0] if len(generations) == 1 else _merged(generations)


async def _merged(generations: Sequence[AsyncGenerator[Update]]) -> AsyncGenerator[Update]:
    queue: asyncio.Queue[Update | BaseException | None] = asyncio.Queue(
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
            update = await queue.get()
            if update is None:
                num_running -= 1
            elif isinstance(update, BaseException):
                raise update
            else:
                yield update
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(
    position: int,
    updates: AsyncGenerator[Update],
    queue: "asyncio.Queue[Update | BaseException | None]",
) -> None:
    try:
        async with aclosing(updates):
            async for update in updates:
                await queue.put(update._replace(position=position))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)

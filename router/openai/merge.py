"""Several generations as one stream, for a request with a list of prompts."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from router.generation import Served

MAX_WAITING_UPDATES = 1
"""Of each prompt: what waits longer gathers in its mailbox, as fewer and larger updates."""


class Part(NamedTuple):
    """What is next, and of which of the generations."""

    position: int
    served: Served


async def merged(generations: Sequence[AsyncGenerator[Served]]) -> AsyncGenerator[Part]:
    """Yields what comes, from whichever it comes first; closes them all when it is closed.

    Raises what the first to fail raises.
    """
    if len(generations) == 1:
        async with aclosing(generations[0]) as updates:
            async for served in updates:
                yield Part(0, served)
        return
    async with aclosing(_merged(generations)) as parts:
        async for part in parts:
            yield part


async def _merged(generations: Sequence[AsyncGenerator[Served]]) -> AsyncGenerator[Part]:
    queue: asyncio.Queue[Part | BaseException | None] = asyncio.Queue(
        MAX_WAITING_UPDATES * len(generations)
    )
    tasks = [
        asyncio.create_task(_read(position, updates, queue))
        for position, updates in enumerate(generations)
    ]
    try:
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
    updates: AsyncGenerator[Served],
    queue: "asyncio.Queue[Part | BaseException | None]",
) -> None:
    try:
        async with aclosing(updates):
            async for served in updates:
                await queue.put(Part(position, served))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)


async def first_and_rest(parts: AsyncGenerator[Part]) -> AsyncIterator[Part]:
    """Returns the stream when its first part is there, so that a failure before it is raised."""
    first = await anext(parts)

    async def all_parts() -> AsyncIterator[Part]:
        yield first
        async for part in parts:
            yield part

    return all_parts()

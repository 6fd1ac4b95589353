"""Watches child processes, and reads what they announce until they end."""

import asyncio
from collections.abc import Callable

from signalbox.stack.processes.child_processes import Child, Started, watch

Take = Callable[[Child, str, str], None]
"""Takes kind and text of a child's announcement."""


class NewsReader:
    """The tasks that read announcements."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._reading: set[asyncio.Task[None]] = set()

    async def watch(self, started: Started) -> Child:
        """Returns the process, watched from this event loop."""
        child = await watch(started)
        reading = asyncio.create_task(self._read(child))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        return child

    async def _read(self, child: Child) -> None:
        while line := (await child.news.readline()).decode():
            kind, _, text = line.strip().partition(" ")
            self._take(child, kind, text)

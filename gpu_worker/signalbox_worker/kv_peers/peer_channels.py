"""Channels to other workers, one for each, that stay open for a while between fetches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from signalbox_contract.sections.store_moves import BlockSource
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import TlsConfig

IDLE_S = 60.0
"""Time for which a channel stays open that no fetch uses."""


@dataclass(slots=True, eq=False)
class _Shared:
    """A channel and its fetches."""

    channel: grpc.aio.Channel
    num_users: int = 0
    closing: asyncio.TimerHandle | None = None


class PeerChannels:
    """Used on one event loop.

    Args:
        tls: certificates that this worker shows and accepts.
    """

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._open: dict[tuple[str, str], _Shared] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Returns the number of workers to which a channel is open."""
        return len(self._open)

    @asynccontextmanager
    async def to(self, source: BlockSource) -> AsyncIterator[grpc.aio.Channel]:
        """Gives a channel to a worker; the next call opens another if this one raises, or is
        cancelled: that may be because the worker no longer answers.

        Raises TlsError.
        """
        key = source.address, source.server_name
        if (shared := self._open.get(key)) is None:
            name = source.server_name or None
            channel = open_channel(source.address, tls=self._tls, server_name=name)
            shared = self._open[key] = _Shared(channel)
        if shared.closing is not None:
            shared.closing.cancel()
        shared.num_users += 1
        try:
            yield shared.channel
        except (Exception, asyncio.CancelledError):
            if self._open.get(key) is shared:
                del self._open[key]
            raise
        finally:
            shared.num_users -= 1
            if not shared.num_users:
                idle_s = IDLE_S if self._open.get(key) is shared else 0.0
                loop = asyncio.get_running_loop()
                shared.closing = loop.call_later(idle_s, self._close, key, shared)

    def close(self) -> None:
        """Closes all channels."""
        for key, shared in list(self._open.items()):
            self._close(key, shared)

    def _close(self, key: tuple[str, str], shared: _Shared) -> None:
        if self._open.get(key) is shared:
            del self._open[key]
        if shared.closing is not None:
            shared.closing.cancel()
        task = asyncio.ensure_future(shared.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

"""A TCP proxy that delays, cuts and freezes the connections that pass it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_CHUNK = 1 << 16


class FaultProxy:
    """Passes bytes on to `target`; what it does to them is changed while connections are open."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay_s = 0.0
        """Added to every chunk of bytes, each way."""
        self.num_accepted = 0
        """Connections so far."""
        self._passes = asyncio.Event()
        self._passes.set()
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, host, port)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Resets every connection; new ones are made."""
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        """Drops all bytes from now on, and tells neither end: a link that is cut, a half-open peer.

        New connections are accepted and hear nothing.
        """
        self._passes.clear()

    def thaw(self) -> None:
        self._passes.set()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_accepted += 1
        self._writers.add(writer)
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:  # as if nothing listened here
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(other_writer)
        for pump in (self._pump(reader, other_writer), self._pump(other_reader, writer)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.close()


@contextlib.asynccontextmanager
async def fault_proxy(target: int) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()

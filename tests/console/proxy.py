"""A reverse proxy that serves a console below a prefix, as one of a company's many pages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

HEAD_END = b"\r\n\r\n"


@asynccontextmanager
async def prefixing_proxy(port: int, prefix: str) -> AsyncIterator[str]:
    """Passes requests below `prefix` on to a port of this machine; yields the console's address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes one request on, and its answer back as it comes."""
        head = await reader.readuntil(HEAD_END)
        method, path, rest = head.decode().split(" ", 2)
        if not path.startswith(prefix):
            writer.write(
                b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close" + HEAD_END
            )
            writer.close()
            return
        passed = f"{method} /{path.removeprefix(prefix)} {rest}"
        passed = passed.replace("Connection: keep-alive", "Connection: close")
        upstream, sink = await asyncio.open_connection("127.0.0.1", port)
        sink.write(passed.encode())
        async with asyncio.TaskGroup() as pipes:
            asking = pipes.create_task(_pipe(reader, sink))
            await _pipe(upstream, writer)
            asking.cancel()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{prefix}"
    finally:
        server.close()


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()

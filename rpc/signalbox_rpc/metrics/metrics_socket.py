"""A Unix socket where a service writes its metrics, for a router of the same machine to show.

Each connection gets the OpenMetrics text and is closed. The permissions of the socket's folder
decide which users may connect. A service that cannot create its socket runs without it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry

from signalbox_rpc.metrics.exposition import encode_openmetrics

logger = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 10.0
"""Seconds for a reader to take the whole text; then its connection is closed."""
READ_TIMEOUT_S = 2.0
"""Seconds for a service to answer; the answering thread may be busy with loading a model."""


@contextlib.asynccontextmanager
async def serving_socket(registry: CollectorRegistry, path: str | None) -> AsyncIterator[None]:
    """Writes the registry to every connection while the context lasts; does nothing if `path` is
    None."""
    if path is None:
        yield
        return

    async def show(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # a timeout is one
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                writer.write(encode_openmetrics(registry))
                writer.close()
                await writer.wait_closed()
        writer.transport.abort()

    try:
        server = await asyncio.start_unix_server(show, path)
    except OSError as error:
        logger.warning("no metrics at the socket %s: %s", path, error)
        yield
        return
    try:
        yield
    finally:
        server.close()


async def read_socket(path: str) -> str:
    """Returns the OpenMetrics text. Raises OSError or TimeoutError if the service writes none."""
    async with asyncio.timeout(READ_TIMEOUT_S):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            return (await reader.read()).decode()
        finally:
            writer.close()

"""A Unix socket where a service writes its metrics, for a router of the same machine to show.

Each connection gets the OpenMetrics text and is closed. The permissions of the socket's folder
decide which users may connect. A service that cannot create its socket runs without it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry

from rpc.exposition import encode_openmetrics

logger = logging.getLogger(__name__)

READ_TIMEOUT_S = 2.0
"""Seconds for a service to answer; it may be busy loading a model on the answering thread."""


@contextlib.asynccontextmanager
async def serving_socket(registry: CollectorRegistry, path: str | None) -> AsyncIterator[None]:
    """Writes the registry to every connection for as long as the context lasts; None: nowhere."""
    if path is None:
        yield
        return

    async def show(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(encode_openmetrics(registry))
            await writer.drain()
        writer.close()

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

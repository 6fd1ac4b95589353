"""A router as a process of its own that asks for API keys, without a scheduler."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.services import Service
from tests.ports import free_port
from tests.waiting import EVENT_S, eventually

NOWHERE = "127.0.0.1:9"


@dataclass(slots=True)
class RouterProcess:
    service: Service
    http_port: int
    keys: Path
    log: Path

    async def send(self, port: int, data: bytes) -> bytes:
        """Sends bytes to a port; returns what comes first, or nothing if the router hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            async with asyncio.timeout(EVENT_S):
                return await reader.read(1 << 16)
        finally:
            writer.close()

    async def status(self, path: str, key: str = "") -> int:
        """Returns the HTTP status of a page."""
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
        answer = await self.send(self.http_port, head.encode())
        return int(answer.split()[1])

    async def knows(self, key: str) -> bool:
        return await self.status("/v1/models", key) != 401


def entries(*keys: str) -> str:
    """Returns a file of keys that are named by themselves, one to three lines each."""
    return "".join(f"- name: {key}\n  sha256: '{_digest(key)}'\n" for key in keys)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@contextlib.asynccontextmanager
async def router_process(folder: Path, text: str, *flags: str) -> AsyncIterator[RouterProcess]:
    """Runs a router whose file of keys has a text; ends it."""
    keys, http_port = folder / "keys.yaml", free_port()
    keys.write_text(text)
    own = (f"--scheduler={NOWHERE}", f"--http-port={http_port}", f"--api-keys={keys}")
    arguments = ("router", *own, *flags)
    service = Service(arguments, free_port(), folder / "log")
    service.start()
    router = RouterProcess(service, http_port, keys, service.log)
    try:
        await eventually(lambda: b"gRPC at" in service.log.read_bytes())
        yield router
    finally:
        await service.kill()

"""Redis servers of tests, in processes of their own, and stores on them."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from signalbox_worker.kv.shared.block_seal import BlockSeal
from signalbox_worker.kv.shared.redis_connection import RedisConnection, Reply
from signalbox_worker.kv.shared.redis_server import RedisServer
from signalbox_worker.kv.shared.shared_store import Bypass, SharedStore
from signalbox_worker.kv.store.block_store import BlockStore
from signalbox_worker.kv.store_url import RedisAddress
from tests.gpu_worker.kv.store.stores import content_of, key_of
from tests.ports import free_port

BLOCK_BYTES = 4096
SECRET = b"s" * 32
IDENTITY = b"\x07" * 32

COMMAND = shutil.which("redis-server") or shutil.which("valkey-server")
needs_redis = pytest.mark.skipif(
    COMMAND is None, reason="redis-server or valkey-server is not installed"
)


class RedisProcess:
    """A server on a port of this machine's; `is_tls` says what the port speaks."""

    def __init__(self, *options: str, port: int | None = None, is_tls: bool = False) -> None:
        assert COMMAND is not None
        self.port = port or free_port()
        self.is_tls = is_tls
        ports = ("--port", "0", "--tls-port") if is_tls else ("--port",)
        fixed = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no")
        self.process = subprocess.Popen(
            [COMMAND, *fixed, *ports, str(self.port), *options], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while True:
            assert self.process.poll() is None
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    @property
    def url(self) -> str:
        return f"{'rediss' if self.is_tls else 'redis'}://127.0.0.1:{self.port}"

    @property
    def address(self) -> RedisAddress:
        return RedisAddress.parse(self.url)

    def call(self, *command: bytes) -> Reply:
        """Does what somebody else with access to the server may do."""
        connection = RedisConnection(
            self.address, password=None, tls=None, deadline=time.monotonic() + 60
        )
        try:
            return connection.call(command)[0]
        finally:
            connection.close()

    def keys(self) -> list[bytes]:
        found = self.call(b"KEYS", b"*")
        assert isinstance(found, list)
        return sorted(key for key in found if isinstance(key, bytes))

    def get(self, key: bytes) -> bytes:
        value = self.call(b"GETRANGE", key, b"0", b"-1")
        assert isinstance(value, bytes)
        return value

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.resume()
        self.process.kill()
        self.process.wait()


@contextmanager
def redis(*options: str, is_tls: bool = False, port: int | None = None) -> Iterator[RedisProcess]:
    server = RedisProcess(*options, is_tls=is_tls, port=port)
    try:
        yield server
    finally:
        server.close()


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets servers of tiers take their time, as they do on a loaded machine."""
    defaults = RedisServer.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "call_s", 60.0)


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_seal(*, secret: bytes = SECRET, identity: bytes = IDENTITY) -> BlockSeal:
    return BlockSeal(secret, identity=identity, block_bytes=BLOCK_BYTES)


def make_store(
    server: RedisProcess | RedisAddress,
    *,
    secret: bytes = SECRET,
    identity: bytes = IDENTITY,
    password: str | None = None,
    clock: Clock | None = None,
    call_s: float = 60.0,
) -> SharedStore:
    seal = make_seal(secret=secret, identity=identity)
    address = server if isinstance(server, RedisAddress) else server.address
    client = RedisServer(
        address,
        group=seal.names.group,
        sealed_bytes=seal.sealed_bytes,
        password=password,
        call_s=call_s,
    )
    return SharedStore(client, seal, Bypass("of the test", clock=clock or Clock()))


def data_of(number: int) -> bytes:
    return content_of(number, block_bytes=BLOCK_BYTES)


def write(store: BlockStore, *numbers: int, tenant: bytes = b"t") -> list[bool]:
    return [store.write(key_of(n), memoryview(data_of(n)), tenant) for n in numbers]


def read(store: BlockStore, number: int) -> bytes | None:
    into = bytearray(BLOCK_BYTES)
    return bytes(into) if store.read(key_of(number), memoryview(into)) else None


def held(store: BlockStore, numbers: range) -> set[int]:
    """Returns the blocks that are there; each of them has the right bytes."""
    found = {number: read(store, number) for number in numbers}
    assert not [n for n, data in found.items() if data not in (None, data_of(n))]
    return {number for number, data in found.items() if data is not None}


def hides(stored: bytes, *numbers: int) -> bool:
    """Returns whether no part of these blocks is in what a server has."""
    return _parts(stored).isdisjoint(part for n in numbers for part in _parts(data_of(n)))


def _parts(data: bytes) -> set[bytes]:
    return {data[at : at + 8] for at in range(len(data) - 7)}


def write_secret(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path

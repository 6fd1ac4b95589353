"""Sealed blocks on a Redis or Valkey server: satisfies `BlockServer`.

A block is a string under `signalbox:kv:MODEL:NAME`. The server evicts by its own `maxmemory` and
policy. A lookup touches the blocks from the last to the first, so that the head of a prefix is used
last.
"""

import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from signalbox_worker.kv.shared.block_seal import HEADER_BYTES, Sealed, tenant_in
from signalbox_worker.kv.shared.block_server import SCAN_S, RefusedError
from signalbox_worker.kv.shared.redis_connection import (
    Part,
    ProtocolError,
    RedisConnection,
    Reply,
    ReplyError,
    tls_context,
)
from signalbox_worker.kv.store.block_store import StoreUsage
from signalbox_worker.kv.store_url import RedisAddress

CALL_S = 2.0
"""Longest time of a call, from connecting to its last byte."""
PREFIX = b"signalbox:kv:"
_SCANNED_KEYS = 2000
_TOUCHED_KEYS = 512

T = TypeVar("T")


class RedisServer:
    """The blocks of one model in a database.

    Args:
        sealed_bytes: length of a sealed block.
        group: name of the model; empty is all of them, for clearing.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        sealed_bytes: int,
        group: str,
        password: str | None = None,
        call_s: float = CALL_S,
    ) -> None:
        """Raises ValueError if a file of the address cannot be used."""
        self._address = address
        self._sealed_bytes = sealed_bytes
        self._tls = tls_context(address)
        self._password = password
        self._prefix = PREFIX + (f"{group}:".encode() if group else b"")
        self._call_s = call_s
        self._lock = threading.Lock()
        self._idle: list[RedisConnection] = []
        self._is_closed = False
        self.num_answers = 0

    def count_leading(self, names: Sequence[bytes]) -> int:
        for start in range(0, len(names), _TOUCHED_KEYS):
            some = names[start : start + _TOUCHED_KEYS]
            touches = [(b"TOUCH", self._key(name)) for name in reversed(some)]
            found = [_value(one) == 1 for one in self._call(*touches)]
            found.reverse()
            if not all(found):
                return start + found.index(False)
        return len(names)

    def read(self, name: bytes) -> Sealed | None:
        size = self._sealed_bytes
        sealed = bytearray(size)

        def get(connection: RedisConnection) -> int | ReplyError:
            # One byte more than a block tells a longer value from it.
            connection.send((b"GETRANGE", self._key(name), b"0", b"%d" % size))
            return connection.receive_into(memoryview(sealed))

        length = _value(self._with(get))
        if not length:
            return None
        return sealed if length == size else b""

    def write(self, name: bytes, sealed: Sealed) -> None:
        key = self._key(name)

        def put(connection: RedisConnection) -> Reply:
            length = _value(connection.call((b"STRLEN", key))[0])
            if length == len(sealed):
                return length
            return connection.call((b"SET", key, sealed))[0]

        reply = self._with(put)
        if isinstance(reply, ReplyError):
            raise RefusedError(str(reply))

    def remove(self, name: bytes) -> None:
        _value(self._call((b"UNLINK", self._key(name)))[0])

    def clear(self, tenant: bytes | None) -> int:
        num_removed = 0
        for keys in self._scan():
            if tenant is not None:
                both = zip(keys, self._headers(keys), strict=True)
                keys = [key for key, header in both if tenant_in(header) == tenant]
            if keys:
                removed = _value(self._call((b"UNLINK", *keys))[0])
                num_removed += removed if isinstance(removed, int) else 0
        return num_removed

    def _scan(self) -> Iterator[list[bytes]]:
        """Yields the keys of blocks, each at least once if it was there all the time."""
        cursor, ends_at = b"0", time.monotonic() + SCAN_S
        while time.monotonic() < ends_at:
            scan = (b"SCAN", cursor, b"MATCH", self._prefix + b"*", b"COUNT", b"%d" % _SCANNED_KEYS)
            reply = _value(self._call(scan)[0])
            if not isinstance(reply, list) or len(reply) != 2 or not isinstance(reply[1], list):
                raise ProtocolError("the answer to SCAN is none")
            yield [key for key in reply[1] if isinstance(key, bytes)]
            if not isinstance(reply[0], bytes) or (cursor := reply[0]) == b"0":
                return
        raise TimeoutError("the server's scan of its keys does not end")

    def sizes(self) -> Iterator[tuple[str, int]]:
        for keys in self._scan():
            replies = self._call(*((b"STRLEN", key) for key in keys))
            for key, length in zip(keys, replies, strict=True):
                group = key.removeprefix(PREFIX).split(b":")[0]
                yield group.decode(errors="replace"), length if isinstance(length, int) else 0

    def usage(self) -> StoreUsage:
        size, *texts = self._call((b"DBSIZE",), (b"INFO", b"memory"), (b"INFO", b"stats"))
        info: dict[str, str] = {}
        for text in texts:
            if isinstance(text, bytes):  # a user may be forbidden to ask
                lines = text.decode(errors="replace").splitlines()
                info |= {name: value for name, _, value in (one.partition(":") for one in lines)}
        return StoreUsage(
            num_blocks=max(0, size) if isinstance(size, int) else 0,
            used_bytes=_number(info, "used_memory"),
            capacity_bytes=_number(info, "maxmemory"),
            num_evicted=_number(info, "evicted_keys"),
        )

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _headers(self, keys: Sequence[bytes]) -> list[bytes]:
        end = b"%d" % (HEADER_BYTES - 1)
        replies = self._call(*((b"GETRANGE", key, b"0", end) for key in keys))
        return [one if isinstance(one, bytes) else b"" for one in replies]

    def _key(self, name: bytes) -> bytes:
        return self._prefix + name.hex().encode()

    def _call(self, *commands: Sequence[Part]) -> list[Reply]:
        return self._with(lambda connection: connection.call(*commands))

    def _with(self, run: Callable[[RedisConnection], T]) -> T:
        """Calls the server on a connection that is idle, or on a new one. Raises OSError."""
        deadline = time.monotonic() + self._call_s
        while (connection := self._pop_idle()) is not None:
            connection.begin(deadline)
            # Closed since, as servers do with idle ones; TLS has an error of its own for that.
            with suppress(ConnectionError, ssl.SSLError):
                return self._run(connection, run)
        connection = RedisConnection(
            self._address, password=self._password, tls=self._tls, deadline=deadline
        )
        return self._run(connection, run)

    def _run(self, connection: RedisConnection, run: Callable[[RedisConnection], T]) -> T:
        try:
            result = run(connection)
        except BaseException:
            connection.close()
            raise
        replies = result if isinstance(result, list) else [result]
        with self._lock:
            self.num_answers += not all(isinstance(one, ReplyError) for one in replies)
            if not self._is_closed:
                self._idle.append(connection)
                return result
        connection.close()
        return result

    def _pop_idle(self) -> RedisConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None


def _value(reply: T | ReplyError) -> T:
    """Returns an answer; an error where none is due is a server that cannot be used."""
    if isinstance(reply, ReplyError):
        raise ConnectionError(str(reply))
    return reply


def _number(info: dict[str, str], name: str) -> int:
    text = info.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else 0

"""A connection to a Redis or Valkey server, in the second version of its protocol (RESP2).

Every call has a deadline for all of it, however slowly bytes come, and its answers together a bound
of their length: a server may be anything. Large values are received in place. Client libraries
bound a single receive alone, and take the length that the server announces.
"""

import socket
import ssl
import time
from collections.abc import Sequence

from signalbox_worker.kv.store_url import RedisAddress

CONNECT_S = 1.0
MAX_CALL_BYTES = 1 << 24
"""Bytes of all answers to a call, beside values that are received in place."""
_MAX_LINE_BYTES = 4096
_MAX_ITEMS = 1 << 16
_MAX_DEPTH = 2
_SEND_BYTES = 1 << 20

Part = bytes | bytearray


class ReplyError(Exception):
    """The server's answer is an error."""


Reply = bytes | int | None | list["Reply"] | ReplyError


class ProtocolError(OSError):
    """The server has sent no answer, or a longer one than was asked for."""


class RedisConnection:
    """Used by one thread at a time. An error but ReplyError leaves it unusable."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        password: str | None,
        tls: ssl.SSLContext | None,
        deadline: float,
    ) -> None:
        """Connects and logs in. Raises OSError."""
        self.begin(deadline)
        self._received = bytearray()
        timeout_s = min(CONNECT_S, self._left_s())
        self._socket = socket.create_connection((address.host, address.port), timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=address.host)
            self._log_in(address, password)
        except BaseException:
            self.close()
            raise

    def _log_in(self, address: RedisAddress, password: str | None) -> None:
        commands: list[tuple[Part, ...]] = []
        if password is not None or address.username:  # a user may need none, but a name
            user = (address.username.encode(),) if address.username else ()
            commands.append((b"AUTH", *user, (password or "").encode()))
        if address.db:
            commands.append((b"SELECT", b"%d" % address.db))
        for reply in self.call(*commands):
            if isinstance(reply, ReplyError):
                raise ConnectionError(f"the login failed: {reply}")

    def close(self) -> None:
        self._socket.close()

    def begin(self, deadline: float) -> None:
        """Begins a call, which ends by `deadline` on the monotonic clock."""
        self._deadline = deadline
        self._num_bytes_left = MAX_CALL_BYTES

    def call(self, *commands: Sequence[Part]) -> list[Reply]:
        """Sends commands at once, and returns their answers; an error is one of them."""
        self.send(*commands)
        return [self.receive() for _ in commands]

    def send(self, *commands: Sequence[Part]) -> None:
        """Sends commands, whose answers are to be received."""
        small = bytearray()
        for command in commands:
            small += b"*%d\r\n" % len(command)
            for part in command:
                small += b"$%d\r\n" % len(part)
                if len(part) > _MAX_LINE_BYTES:
                    self._send(small)
                    self._send(part)
                    small.clear()
                else:
                    small += part
                small += b"\r\n"
        self._send(small)

    def receive(self, depth: int = 0) -> Reply:
        """Returns the next answer."""
        kind, rest = self._header()
        if kind == b"+":
            return rest
        if kind == b"-":
            return ReplyError(rest.decode(errors="replace"))
        if kind == b":":
            return _int(rest)
        if kind == b"$":
            length = _int(rest)
            return None if length < 0 else self._bulk(length, self._num_bytes_left)
        if kind == b"*" and _int(rest) <= _MAX_ITEMS and depth < _MAX_DEPTH:
            return [self.receive(depth + 1) for _ in range(_int(rest))]
        raise ProtocolError(f"an answer begins with {kind + rest[:16]!r}")

    def receive_into(self, into: memoryview) -> int | ReplyError:
        """Receives a value into a buffer; returns its length, which may be another.

        At most one byte more may come than there is room for.
        """
        kind, rest = self._header()
        if kind == b"-":
            return ReplyError(rest.decode(errors="replace"))
        length = _int(rest)
        if kind != b"$" or length > len(into) + 1:
            raise ProtocolError(f"an answer begins with {kind + rest[:16]!r}")
        if length < 0:
            return 0
        self._fill(into[:length])
        left = max(0, length - len(into))
        self._bulk(left, left)
        return length

    def _header(self) -> tuple[bytes, bytes]:
        while (end := self._received.find(b"\r\n")) < 0:
            if len(self._received) > _MAX_LINE_BYTES:
                raise ProtocolError("an answer has a line without an end")
            self._receive_more()
        line = bytes(self._received[:end])
        del self._received[: end + 2]
        self._count(len(line))
        return line[:1], line[1:]

    def _count(self, num_bytes: int) -> None:
        self._num_bytes_left -= num_bytes
        if self._num_bytes_left < 0:
            raise ProtocolError("the answers to a call are too long")

    def _bulk(self, length: int, max_bytes: int) -> bytes:
        if length > max_bytes:
            raise ProtocolError(f"an answer has {length} bytes, more than were asked for")
        self._count(length)
        data = bytearray(length + 2)
        self._fill(memoryview(data))
        if not data.endswith(b"\r\n"):
            raise ProtocolError("an answer does not end where it should")
        return bytes(data[:-2])

    def _fill(self, into: memoryview) -> None:
        num_bytes = min(len(into), len(self._received))
        into[:num_bytes] = self._received[:num_bytes]
        del self._received[:num_bytes]
        while num_bytes < len(into):
            self._socket.settimeout(self._left_s())
            received = self._socket.recv_into(into[num_bytes:])
            if not received:
                raise ConnectionResetError("the server has closed the connection")
            num_bytes += received

    def _receive_more(self) -> None:
        self._socket.settimeout(self._left_s())
        data = self._socket.recv(_MAX_LINE_BYTES)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self._received += data

    def _send(self, data: Part) -> None:
        view, sent = memoryview(data), 0
        while sent < len(view):
            self._socket.settimeout(self._left_s())
            sent += self._socket.send(view[sent : sent + _SEND_BYTES])
        view.release()

    def _left_s(self) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the server is slow")
        return left_s


def _int(text: bytes) -> int:
    try:
        return int(text[:20])
    except ValueError:
        raise ProtocolError(f"an answer has {text[:16]!r} for a number") from None


def tls_context(address: RedisAddress) -> ssl.SSLContext | None:
    """Returns what connections to a TLS address take. Raises ValueError if a file is no use."""
    if not address.is_tls:
        return None
    files = (address.ssl_ca_certs, address.ssl_certfile, address.ssl_keyfile)
    try:
        context = ssl.create_default_context(cafile=address.ssl_ca_certs)
        if address.ssl_certfile is not None:
            context.load_cert_chain(address.ssl_certfile, address.ssl_keyfile, password="")
    except (OSError, ValueError) as error:  # which does not say of what
        names = ", ".join(name for name in files if name is not None)
        raise ValueError(f"--kv-store: TLS cannot use {names}: {error}") from None
    return context

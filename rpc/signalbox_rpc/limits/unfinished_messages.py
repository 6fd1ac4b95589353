"""Bounds the bytes of incomplete gRPC messages, over all connections.

gRPC allocates memory for the received part of a message, compares the length with the limit only at
the end, and tells Python nothing before. So the kernel is asked how many bytes each connection has
received since a call on it became late. When the sum is too large, the late calls of the connection
with the most bytes are ended, which frees their memory. On a connection with other traffic too many
bytes count against its late calls; those are few, and its other calls continue.
"""

import asyncio
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import takewhile
from urllib.parse import unquote

MAX_UNFINISHED_BYTES = 128 << 20
"""Bytes that connections may receive while calls on them are late."""
LATE_S = 0.02
"""Seconds after which a call without its request is late; honest calls rarely are."""
LOOK_S = 0.05
"""Seconds between two looks at the connections while calls wait."""
_BYTES_RECEIVED = 128
"""Offset of `tcpi_bytes_received`, 64 bits, in Linux's `struct tcp_info`."""


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call whose request is incomplete."""

    connection: str
    """The peer as gRPC names it, without escapes: "ipv6:[::1]:54321"."""
    since_s: float
    refuse: Callable[[], None]
    num_bytes_before: int | None = None
    """Bytes that the connection had received when the call was first found late."""


class UnfinishedMessages:
    """The calls that wait for their requests; ends those that may hold too many bytes."""

    def __init__(self, most: int, received: Callable[[], dict[str, int]] | None = None) -> None:
        """Sets the limit; `received` returns the bytes received by each connection so far."""
        self._most = most
        self._received = received or bytes_received
        self._waiting: dict[WaitingCall, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: str, refuse: Callable[[], None]) -> WaitingCall:
        """Returns a call that waits until `finish`; `refuse` is called if the call must end."""
        loop = asyncio.get_running_loop()
        call = WaitingCall(unquote(connection), loop.time(), refuse)
        self._waiting[call] = None
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._look)
        return call

    def finish(self, call: WaitingCall) -> None:
        self._waiting.pop(call, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_S, self._look) if self._waiting else None
        before = loop.time() - LATE_S
        late = list(takewhile(lambda call: call.since_s <= before, self._waiting))
        if late:
            self._end_excess(late, self._received())

    def _end_excess(self, late: Collection[WaitingCall], received: dict[str, int]) -> None:
        calls: defaultdict[str, list[WaitingCall]] = defaultdict(list)
        unfinished: defaultdict[str, int] = defaultdict(int)
        for call in late:
            now = received.get(call.connection)
            if now is None:
                continue
            if call.num_bytes_before is None:
                call.num_bytes_before = now
            calls[call.connection].append(call)
            since = now - call.num_bytes_before
            unfinished[call.connection] = max(unfinished[call.connection], since)
        total = sum(unfinished.values())
        for connection in sorted(unfinished, key=unfinished.__getitem__, reverse=True):
            if total <= self._most:
                return
            total -= unfinished[connection]
            for call in calls[connection]:
                self.finish(call)
                call.refuse()


def bytes_received() -> dict[str, int]:
    """Returns how many bytes this process's TCP connections have received, by peer.

    The result is empty if the system does not tell, that is, except on Linux.
    """
    received = {}
    try:
        files = os.listdir("/proc/self/fd")  # noqa: PTH208 - names, and some a thousand
    except OSError:
        return {}
    for file in files:
        try:
            connection = socket.socket(fileno=int(file))
        except OSError:  # no socket, or closed since
            continue
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
            received[_peer(connection)] = struct.unpack_from("Q", info, _BYTES_RECEIVED)[0]
        except (OSError, struct.error):  # not TCP, not connected, or an old kernel
            pass
        finally:
            connection.detach()
    return received


def _peer(connection: socket.socket) -> str:
    """Returns the peer of a TCP connection as gRPC names it, without escapes."""
    host, port = connection.getpeername()[:2]
    if connection.family is socket.AF_INET:
        return f"ipv4:{host}:{port}"
    mapped = host.removeprefix("::ffff:")
    return f"ipv4:{mapped}:{port}" if mapped != host else f"ipv6:[{host}]:{port}"

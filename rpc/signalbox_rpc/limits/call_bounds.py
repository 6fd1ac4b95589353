"""Bounds calls that have sent no request yet, and calls that last: health watches and reflection.

gRPC itself bounds connections and the streams of each. A call whose request does not come, a health
watch and a reflection stream hold some 30 KB each, need no key, and could fill a gateway's
connection; so they have slots of their own, a limited number for each connection.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from inspect import iscoroutine
from typing import Any

from signalbox_contract.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted
from signalbox_rpc.interceptors.call_handlers import (
    Context,
    Handler,
    Requests,
    WrappingInterceptor,
    receiving,
    wrap,
)
from signalbox_rpc.limits.open_files import open_files_limit
from signalbox_rpc.limits.peer_timeout import NUM_LOOKS
from signalbox_rpc.limits.unfinished_messages import MAX_UNFINISHED_BYTES, UnfinishedMessages

PART_OF_STREAMS = 4
"""Divisor of a connection's streams that gives its slots of one kind: the two kinds together leave
half of the streams to other calls."""
MAX_SLOTS = 4096
"""Most slots of one kind over all connections: about 130 MB."""
FEW = 4
"""Slots that a connection gets even if all `MAX_SLOTS` are taken, so that no client can take
all."""
PATIENCE_S = 1.0
"""Seconds that a call waits for its request without a slot. A gateway may send a thousand calls at
once; their bodies come an instant later, and they must not be refused."""
SHARE_OF_FILES = 0.25
"""Share of the process's open files for the connections of one server. HTTP may use half."""
MAX_UNREQUESTED_S = 10
"""Seconds after which gRPC drops calls that a stopped or overloaded event loop has not accepted.
Nothing else bounds calls of clients that open a new connection for each thousand."""
HANDSHAKE_S = 10
"""Seconds in which a connection must begin to speak TLS and HTTP/2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBounds:
    """Bounds of one gRPC server."""

    max_connections: int = 1024
    """Most connections of all clients; further ones are closed at once. Lower if the process may
    open few files. A stream that waits for the event loop takes 15 KB, and a connection may have
    `max_streams`. Honest clients with a connection each may number a thousand; a router behind a
    gateway needs fewer."""
    max_streams: int = 1024
    """Most streams of one connection. At this bound a gRPC client waits, without an error, until a
    call ends. gRPC counts a stream until this process has released it, which bounds calls that are
    opened and reset at once; so a client that stays at the bound may read UNAVAILABLE
    (REFUSED_STREAM)."""
    request_timeout_s: float = 10.0
    """Seconds in which a call's request must arrive."""

    def options(self) -> list[tuple[str, int]]:
        """Returns the arguments of a gRPC server.

        `grpc.server.max_pending_requests` is not among them: grpcio 1.81 applies it only to a kind
        of call that its servers do not make yet.
        """
        num_connections = min(self.max_connections, int(open_files_limit() * SHARE_OF_FILES))
        return [
            ("grpc.max_concurrent_streams", self.max_streams),
            ("grpc.max_allowed_incoming_connections", max(1, num_connections)),
            ("grpc.server_max_unrequested_time_in_server", MAX_UNREQUESTED_S),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
        ]


NORMAL_BOUNDS = CallBounds()


class CallSlots:
    """Slots for calls of one kind, limited per connection and in total."""

    def __init__(self, *, per_connection: int, total: int) -> None:
        self._per_connection = per_connection
        self._total = total
        self._reserved: Counter[str] = Counter()
        self.num_reserved = 0

    def reserve(self, connection: str) -> bool:
        """Reserves a slot, which `release` gives back; returns False if there is none."""
        most = self._per_connection if self.num_reserved < self._total else FEW
        if self._reserved[connection] >= min(most, self._per_connection):
            return False
        self._reserved[connection] += 1
        self.num_reserved += 1
        return True

    def release(self, connection: str) -> None:
        self.num_reserved -= 1
        self._reserved[connection] -= 1
        if not self._reserved[connection]:
            del self._reserved[connection]


class _Wait:
    """A call's wait for its request: `PATIENCE_S` without a slot, the rest with one.

    As in `peer_timeout.py`, the timer looks several times, so that a pause of the event loop costs
    only one look.
    """

    def __init__(self, slots: CallSlots, connection: str, *, timeout_s: float) -> None:
        self._slots = slots
        self._connection = connection
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._num_looks = 0
        self._timer = self._loop.call_later(PATIENCE_S / NUM_LOOKS, self._look)
        self.timeout = asyncio.timeout(None)
        """Cancels the code inside its block when the wait is over."""
        self.has_slot = False
        self.holds_too_much = False

    def refuse(self) -> None:
        """Ends the wait because the connection has sent too many bytes of incomplete messages."""
        if not self.timeout.expired():
            self.holds_too_much = True
            self._timer.cancel()
            self.timeout.reschedule(self._loop.time())

    def end(self) -> None:
        self._timer.cancel()
        if self.has_slot:
            self._slots.release(self._connection)

    def _look(self) -> None:
        self._num_looks += 1
        if self._num_looks == NUM_LOOKS:
            self.has_slot = self._slots.reserve(self._connection)
        is_impatient = self._num_looks >= NUM_LOOKS and not self.has_slot
        if is_impatient or self._num_looks == 2 * NUM_LOOKS:
            self.timeout.reschedule(self._loop.time())
            return
        has_patience = self._num_looks < NUM_LOOKS
        left_s = PATIENCE_S if has_patience else max(0.0, self._timeout_s - PATIENCE_S)
        self._timer = self._loop.call_later(left_s / NUM_LOOKS, self._look)


class CallBoundsInterceptor(WrappingInterceptor):
    """Keeps calls within their slots; must be inside the outermost interceptor."""

    def __init__(self, bounds: CallBounds) -> None:
        per_connection = max(1, bounds.max_streams // PART_OF_STREAMS)
        self._timeout_s = bounds.request_timeout_s
        self._late = CallSlots(per_connection=per_connection, total=MAX_SLOTS)
        self._lasting = CallSlots(per_connection=per_connection, total=MAX_SLOTS)
        self._unfinished = UnfinishedMessages(MAX_UNFINISHED_BYTES)

    def wrapped(self, handler: Handler, method: str) -> Handler:
        if handler.response_streaming and method.startswith("/grpc."):
            handler = wrap(handler, self._last)
        return handler if handler.request_streaming else receiving(handler, self._receive)

    async def _last(self, call: Awaitable[Any], context: Context) -> Any:
        """Awaits a health watch or a reflection stream, which lasts until its client ends it."""
        connection = context.peer()
        if not self._lasting.reserve(connection):
            if iscoroutine(call):
                call.close()
            raise ResourceExhausted(
                "this connection, or all together, have as many health watches and reflection"
                " streams as they may"
            )
        try:
            return await call
        finally:
            self._lasting.release(connection)

    async def _receive(self, requests: Requests, context: Context) -> Any:
        """Returns the request of a call with one request.

        Raises DeadlineExceeded or ResourceExhausted if it does not come.
        """
        connection = context.peer()
        wait = _Wait(self._late, connection, timeout_s=self._timeout_s)
        unfinished = self._unfinished.begin(connection, wait.refuse)
        try:
            async with wait.timeout:
                request = await anext(requests, None)
        except TimeoutError:
            raise self._no_request(wait) from None
        finally:
            self._unfinished.finish(unfinished)
            wait.end()
        if request is None:
            raise InvalidArgument("request", "nothing", "one message")
        return request

    def _no_request(self, wait: _Wait) -> DeadlineExceeded | ResourceExhausted:
        if wait.holds_too_much:
            return ResourceExhausted("too many bytes have come of requests that are not whole", 1.0)
        if wait.has_slot:
            return DeadlineExceeded(f"no request has come within {self._timeout_s:g} s")
        return ResourceExhausted(
            f"no request has come within {PATIENCE_S:g} s, and as many calls as may wait longer do"
        )

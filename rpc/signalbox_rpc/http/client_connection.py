"""One connection of an HTTP port, with limits on the bytes and the time of what its client sends.

uvicorn limits only the time between requests: neither the time before the first one, nor within a
head or a body. With httptools as the parser it does not limit the bytes of a head either. These
limits hold with both parsers, h11 and httptools; uvicorn uses the one that is installed.
"""

import asyncio
import enum
import math
import re
import time
from typing import TYPE_CHECKING, Any

import h11
from starlette.types import Message
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from signalbox_rpc.http import port_limits
from signalbox_rpc.http.connection_slots import ConnectionSlot, ConnectionSlots
from signalbox_rpc.http.errors import HttpError
from signalbox_rpc.http.head_gate import HEAD_LARGE, HEADERS_MANY
from signalbox_rpc.http.parsing_share import FIRST_BYTES, ParsingShare, Pause, Slices
from signalbox_rpc.http.pipeline import cut_pipeline
from signalbox_rpc.http.port_limits import HttpLimits
from signalbox_rpc.http.unfinished_bodies import UnfinishedBodies

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Parser
else:
    Parser = object

HEAD_LATE = HttpError(408, "the request's headers came too slowly", closes=True)
BODY_LATE = HttpError(408, "the request's body came too slowly", closes=True)
_WITHOUT_PATH = re.compile(rb"^[a-z]+://[^/?#]+(?=[?#]|$)", re.IGNORECASE)
"""Target in absolute form whose path is empty, which is the same as / (RFC 9110, 4.2.3)."""
FRAMING_LARGE = HttpError(
    413, "the body's chunks are too small, or have too many extensions or trailers", closes=True
)
MALFORMED = HttpError(400, "the bytes are no request of HTTP/1.1", closes=True)


class Awaiting(enum.Enum):
    """The event that the connection waits for."""

    IDLE = enum.auto()
    """The next request."""
    HEAD = enum.auto()
    """The rest of a request's head."""
    BODY = enum.auto()
    """The rest of a request's body."""
    ANSWER = enum.auto()
    """The application's answer."""
    REST = enum.auto()
    """The rest of a body that is discarded, since its request has been answered."""


class LimitedParser(Parser):
    """Closes a connection whose client sends too much or too slowly; precedes a parser in the
    bases.

    As a `BufferedProtocol` it limits how much is read, and therefore parsed, at a time.
    """

    url: bytes
    """Target of the current request, if httptools parses."""

    def _unsupported_upgrade_warning(self) -> None:
        """Stays silent: the request is answered as one without `Upgrade`, by RFC 9110, 7.8."""

    def bind(
        self,
        slot: ConnectionSlot,
        slots: ConnectionSlots,
        bodies: UnfinishedBodies,
        share: ParsingShare,
        limits: HttpLimits,
    ) -> None:
        """Sets what the connection shares with others; call it before the connection is made."""
        self._slot, self._slots, self._bodies, self._limits = slot, slots, bodies, limits
        self._share = share
        self._slices = Slices(port_limits.READ_BYTES if hasattr(self, "parser") else FIRST_BYTES)
        self._pause: Pause | None = None
        """Pause of parsing, if there is one."""
        self._paused_at = 0.0
        self._phase, self._phase_of = Awaiting.IDLE, self.cycle
        self._answered: Any = None
        """Cycle of the request that is being answered, while others are parsed behind it."""
        self._num_bytes = 0
        """Bytes received of the current head."""
        self._num_lines = 0
        """Lines of it, while it is not complete: h11 would parse thousands of headers at once."""
        self._framing_left = 0
        """Bytes that the current body may yet take beyond its own."""
        self._patience_ends = math.inf
        """Time on the loop's clock when a body is cut off, unless more of it comes."""
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._message_of: Any = None
        """Cycle of the message whose body is being received, if httptools parses."""
        self._kept = bytearray()
        """Bytes to parse when the current request has been answered, or after a pause."""
        self._is_full = False
        """True if more came than is kept; the connection then ends with the last answer."""
        self._takes_no_more = False
        self._num_discarded = 0
        """Bytes that came after the last one that is taken."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._slot.holder = self
        self._set_timer(port_limits.HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._slots.leave(self._slot)
        self._bodies.end(self._slot)
        self._end_request()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Ends the request: a client that sends no more has left. The transport then closes once
        what is written has been read."""
        if self._takes_no_more:
            self._end_request()
        else:
            self._let_go(None)
        if self._unread_timer is None:
            self._watch_reading(math.inf)

    def get_buffer(self, sizehint: int) -> memoryview:
        size = port_limits.READ_BYTES
        if self._phase in (Awaiting.IDLE, Awaiting.HEAD):  # no read goes past the longest head
            size = max(1, min(size, port_limits.MAX_HEAD_BYTES - self._num_bytes))
        # Under TLS, asyncio reads further records into slices, and one of a bytearray is a copy.
        self._buffer = memoryview(bytearray(size))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Takes bytes. Reading goes on during an answer: only so a client is seen to leave."""
        if self._takes_no_more or self._is_full:
            self._num_discarded += len(data)
            if self._num_discarded > port_limits.MAX_DISCARDED_BYTES:
                self.transport.abort()
        elif self._pause is not None and self._phase is not Awaiting.ANSWER:
            self._kept += data
            self._unset_keepalive_if_required()
            self.transport.pause_reading()
        elif self._kept or self._phase is Awaiting.ANSWER:
            room = port_limits.MAX_READ_AHEAD_BYTES - len(self._kept)
            self._kept += data[:room]
            self._is_full = len(data) > room
        else:
            self._parse(data)

    def _parse_kept(self) -> None:
        if self._phase is Awaiting.ANSWER or self._pause is not None or self._takes_no_more:
            return
        data = bytes(self._kept)
        self._kept.clear()
        if data:
            self._parse(data)
        elif self._is_full:
            self._let_go(None)
            self.transport.close()

    def _parse(self, data: bytes) -> None:
        began = before = time.thread_time()
        while data and not self._takes_no_more:
            size = self._slices.num_bytes
            self._parse_slice(data[:size])
            data, now = data[size:], time.thread_time()
            if self._slices.was_dear(now - before) and not self._takes_no_more:
                self._paused_at = self.loop.time()
                self._pause = self._share.pause(self._slot.address, now - began, self._end_pause)
            if self._pause is not None or self._phase is Awaiting.ANSWER:
                self._kept += data
                return
            before = now

    def _end_pause(self) -> None:
        """Goes on with what was kept. The time of the pause does not count as the client's."""
        if self._pause is None:  # the connection has ended
            return
        self._pause = None
        self._patience_ends += self.loop.time() - self._paused_at
        if self._timer is not None:
            self._set_timer(self._timer.when() - self._paused_at)
        if not self.flow.read_paused:
            self.transport.resume_reading()
        self._parse_kept()

    def _parse_slice(self, data: bytes) -> None:
        before, cycle = self._phase, self.cycle
        num_held = len(cycle.body) if before is Awaiting.BODY else 0
        self._num_bytes += len(data)
        super().data_received(data)
        if before is Awaiting.REST:
            self._num_bytes = 0
        elif before is Awaiting.BODY and not self._takes_no_more:
            self._count_body(len(data), len(cycle.body) - num_held)
        if self._takes_no_more:
            return
        if cut_pipeline(self):
            self._takes_no_more = True
            self._slots.answer(self._slot)
            self.flow.resume_reading()  # closing with unread bytes would reset the connection
        if before in (Awaiting.IDLE, Awaiting.HEAD) and self._now_in() is Awaiting.HEAD:
            self._num_lines += data.count(b"\n")
        self._follow()

    def _count_body(self, num_bytes: int, num_of_body: int) -> None:
        self._framing_left += num_of_body - (num_bytes - num_of_body)
        if self._framing_left < 0:
            self._drop(FRAMING_LARGE)
            return
        self._extend_patience(num_of_body)
        self._bodies.add(self._slot, num_of_body)

    def on_response_complete(self) -> None:
        waiting = getattr(self, "pipeline", None)
        self._answered = waiting[-1][0] if waiting else None
        super().on_response_complete()
        self._follow()
        if self._unread_timer is None:
            self._watch_reading(math.inf)

    def send_400_response(self, msg: str) -> None:
        self._drop(MALFORMED)

    # Only httptools calls these methods.
    def on_headers_complete(self) -> None:
        self._answered = self._running
        if not self.url.startswith(b"/"):
            self.url = _WITHOUT_PATH.sub(rb"\g<0>/", self.url)
        super().on_headers_complete()  # type: ignore[misc]
        self._message_of = self.cycle
        if self.scope["http_version"] == "1.0":
            _answer_http_1_0(self.cycle)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._message_of is not None:
            return  # a trailer, which uvicorn would add to the headers
        if len(self.headers) <= port_limits.MAX_HEADERS:  # with one more it is refused
            super().on_header(name, value)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        super().on_message_complete()  # type: ignore[misc]
        self._message_of = None

    @property
    def _running(self) -> Any:
        """The cycle that is being answered, or else the last one."""
        return self._answered if getattr(self, "pipeline", None) else self.cycle

    def _follow(self) -> None:
        """Updates the phase and its timer."""
        if self._takes_no_more:
            return
        phase, cycle = self._now_in(), self._running
        if phase is Awaiting.HEAD and self._num_bytes >= port_limits.MAX_HEAD_BYTES:
            self._drop(HEAD_LARGE)
        elif phase is Awaiting.HEAD and self._num_lines - 1 > port_limits.MAX_HEADERS:
            self._drop(HEADERS_MANY)
        elif (phase, cycle) != (self._phase, self._phase_of):
            self._phase, self._phase_of = phase, cycle
            self._begin(phase)

    def _now_in(self) -> Awaiting:
        cycle = self._running
        if cycle is not None and not (cycle.response_complete or cycle.disconnected):
            return Awaiting.BODY if cycle.more_body else Awaiting.ANSWER
        if cycle is not None and self._is_within_body():
            return Awaiting.REST
        return Awaiting.HEAD if self._num_bytes else Awaiting.IDLE

    def _is_within_body(self) -> bool:
        if isinstance(connection := getattr(self, "conn", None), h11.Connection):
            return connection.their_state is h11.SEND_BODY
        return self._message_of is self.cycle

    def _begin(self, phase: Awaiting) -> None:
        if phase is not Awaiting.HEAD:
            self._num_bytes = self._num_lines = 0
        if phase is Awaiting.ANSWER:
            self._slots.answer(self._slot)
        else:
            self._slots.wait(self._slot)
        self._bodies.end(self._slot)
        if phase is Awaiting.BODY:
            self._bodies.begin(self._slot)
            self._framing_left = port_limits.FRAMING_BYTES
            self._patience_ends = self.loop.time() + port_limits.BODY_GRACE_S
            self._set_timer(port_limits.BODY_GRACE_S if self._limits.min_body_rate else math.inf)
        elif phase in (Awaiting.HEAD, Awaiting.REST):
            self._set_timer(port_limits.HEAD_S)
        else:  # uvicorn closes idle connections
            self._stop_timer()
        if phase is Awaiting.ANSWER:
            self.flow.resume_reading()
        elif self._kept or self._is_full:
            self._unset_keepalive_if_required()  # a pause may delay what has come
            self.loop.call_soon(self._parse_kept)

    def _on_timer(self) -> None:
        if self._pause is not None:  # its end starts the timer again
            return
        self._timer = None
        if self._phase is Awaiting.BODY:
            if self.flow.read_paused:  # the application has not read the bytes that came
                self._patience_ends = self.loop.time() + port_limits.BODY_GRACE_S
            if (left := self._patience_ends - self.loop.time()) > 0:
                self._set_timer(left)
                return
        self._drop({Awaiting.HEAD: HEAD_LATE, Awaiting.BODY: BODY_LATE}.get(self._phase))

    def _extend_patience(self, num_bytes: int) -> None:
        """Extends a body's deadline for received bytes, up to the grace that it began with."""
        if rate := self._limits.min_body_rate:
            most = self.loop.time() + port_limits.BODY_GRACE_S
            self._patience_ends = min(most, self._patience_ends + num_bytes / rate)

    def _watch_reading(self, num_unread: float) -> None:
        """Ends the connection if its client reads nothing of the rest of an answer."""
        now = self.transport.get_write_buffer_size()
        if now >= num_unread and self._now_in() is not Awaiting.ANSWER:
            self.transport.abort()
        elif now:
            self._unread_timer = self.loop.call_later(
                port_limits.UNREAD_S, self._watch_reading, now
            )
        else:
            self._unread_timer = None

    def vacate(self, error: HttpError) -> bool:
        """Closes the connection to make room, as a `SlotHolder`."""
        if self.transport.get_write_buffer_size():
            return False
        if not self._takes_no_more:  # else it has been refused, and nothing can be written
            self._let_go(error if self._phase is not Awaiting.IDLE else None)
        self.transport.abort()
        return True

    def _drop(self, error: HttpError | None) -> None:
        """Ends the connection in a way that lets the client read the error."""
        self._let_go(error)
        if self.transport.can_write_eof():  # which TLS cannot; its client knows the answer's length
            self.transport.write_eof()  # closing with bytes unread would discard the answer
        self._unread_timer = self.loop.call_later(port_limits.LINGER_S, self.transport.abort)

    def _let_go(self, error: HttpError | None) -> None:
        """Writes the error unless an answer has begun, and tells the application that the request
        ended."""
        self._stop_timers()
        self._unset_keepalive_if_required()
        self._takes_no_more = True
        self._kept.clear()
        self.flow.resume_reading()
        self.transport.resume_reading()
        cycle = self._running
        is_answering = cycle is not None and not cycle.response_complete
        if error is not None and not (is_answering and cycle.response_started):
            scope: Any = cycle.scope if is_answering else None
            self.transport.write(error.to_bytes(scope))
        self._end_request()

    def _end_request(self) -> None:
        """Tells the application that its client has left; requests behind it are not begun."""
        cycle = self._running
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.flow.resume_writing()

    def _set_timer(self, delay_s: float) -> None:
        self._stop_timer()
        if delay_s < math.inf:
            self._timer = self.loop.call_later(delay_s, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_timers(self) -> None:
        self._stop_timer()
        if self._pause is not None:
            self._share.withdraw(self._pause)
            self._pause = None
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


def _answer_http_1_0(cycle: Any) -> None:
    """Makes httptools' cycle write what a client of HTTP/1.0 can read, as h11's does.

    A body without a length is not chunked: it ends with the connection (RFC 9112, 6.1 and 6.3).
    Such a client's `Expect` is ignored (RFC 9110, 10.1.1).
    """
    write, ends_by_closing = cycle.send, False
    cycle.waiting_for_100_continue = False

    async def send(message: Message) -> None:
        nonlocal ends_by_closing
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            ends_by_closing = b"content-length" not in names
            if ends_by_closing:
                cycle.chunked_encoding = False
        elif ends_by_closing:
            cycle.expected_content_length = len(message.get("body", b""))
        await write(message)

    cycle.send = send


class BoundedConnection(LimitedParser, AutoHTTPProtocol, asyncio.BufferedProtocol):  # type: ignore[misc, valid-type]
    """A bounded connection with the parser that uvicorn chooses."""

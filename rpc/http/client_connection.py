"""One connection of an HTTP port, with limits on the bytes and the time of what its client sends.

uvicorn limits only the time between requests: neither the time before the first one, nor within a
head or a body. With httptools as the parser it does not limit the bytes of a head either. These
limits hold with both parsers, h11 and httptools; uvicorn uses the one that is installed.
"""

import asyncio
import enum
import math
import re
from typing import TYPE_CHECKING, Any

import h11
from starlette.types import Message
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from rpc.http import port_limits
from rpc.http.connection_places import Place, Places
from rpc.http.errors import HttpError
from rpc.http.pipeline import PipelineFlow, cut_pipeline
from rpc.http.port_limits import HttpLimits
from rpc.http.unfinished_bodies import UnfinishedBodies

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Parser
else:
    Parser = object

HEAD_LATE = HttpError(408, "the request's headers came too slowly", closes=True)
BODY_LATE = HttpError(408, "the request's body came too slowly", closes=True)
HEAD_LARGE = HttpError(
    431, f"the headers have more than {port_limits.MAX_HEAD_BYTES} bytes", closes=True
)
_WITHOUT_PATH = re.compile(rb"^[a-z]+://[^/?#]+(?=[?#]|$)", re.IGNORECASE)
"""Target in absolute form whose path is empty, which is the same as / (RFC 9110, 4.2.3)."""
MALFORMED = HttpError(400, "the bytes are no request of HTTP/1.1", closes=True)


class Phase(enum.Enum):
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


class Bounds(Parser):
    """Closes a connection whose client sends too much or too slowly; precedes a parser in the
    bases.

    As a `BufferedProtocol` it limits how much is read, and therefore parsed, at a time.
    """

    url: bytes
    """Target of the current request, if httptools parses."""

    def _unsupported_upgrade_warning(self) -> None:
        """Stays silent: the request is answered as one without `Upgrade`, by RFC 9110, 7.8."""

    def bind(
        self, place: Place, places: Places, bodies: UnfinishedBodies, limits: HttpLimits
    ) -> None:
        """Sets what the connection shares with others; call it before the connection is made."""
        self._place, self._places, self._bodies, self._limits = place, places, bodies, limits
        self._phase, self._phase_of = Phase.IDLE, self.cycle
        self._num_bytes = 0
        """Bytes received of the current head."""
        self._patience_ends = math.inf
        """Time on the loop's clock when a body is cut off, unless more of it comes."""
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._message_of: Any = None
        """Cycle of the message whose body is being received, if httptools parses."""
        self._takes_no_more = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = PipelineFlow(transport, self)
        self._place.close = self._close
        self._set_timer(port_limits.HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._places.leave(self._place)
        self._bodies.end(self._place)
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        # Under TLS, asyncio reads further records into slices, and one of a bytearray is a copy.
        self._buffer = memoryview(bytearray(port_limits.READ_BYTES))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        if self._takes_no_more:
            return
        before = self._phase
        self._num_bytes += len(data)
        super().data_received(data)
        if before is Phase.REST:
            self._num_bytes = 0
        elif before is Phase.BODY:
            self._extend_patience(len(data))
            self._bodies.add(self._place, len(data))
        if cut_pipeline(self):
            self._takes_no_more = True
            self._places.answer(self._place)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()
        if self._unread_timer is None:
            self._watch_reading(math.inf)

    def send_400_response(self, msg: str) -> None:
        self._drop(MALFORMED)

    # Only httptools calls these methods.
    def on_headers_complete(self) -> None:
        if not self.url.startswith(b"/"):
            self.url = _WITHOUT_PATH.sub(rb"\g<0>/", self.url)
        super().on_headers_complete()  # type: ignore[misc]
        self._message_of = self.cycle
        if self.scope["http_version"] == "1.0":
            _answer_http_1_0(self.cycle)

    def on_message_complete(self) -> None:
        super().on_message_complete()  # type: ignore[misc]
        self._message_of = None

    def _follow(self) -> None:
        """Updates the phase and its timer."""
        phase = self._now_in()
        if self._takes_no_more:
            return
        if phase is Phase.HEAD and self._num_bytes > port_limits.MAX_HEAD_BYTES:
            self._drop(HEAD_LARGE)
        elif (phase, self.cycle) != (self._phase, self._phase_of):
            self._phase, self._phase_of = phase, self.cycle
            self._begin(phase)

    def _now_in(self) -> Phase:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            return Phase.BODY if cycle.more_body else Phase.ANSWER
        if cycle is not None and self._is_within_body():
            return Phase.REST
        return Phase.HEAD if self._num_bytes else Phase.IDLE

    def _is_within_body(self) -> bool:
        if isinstance(connection := getattr(self, "conn", None), h11.Connection):
            return connection.their_state is h11.SEND_BODY
        return self._message_of is self.cycle

    def _begin(self, phase: Phase) -> None:
        if phase is not Phase.HEAD:
            self._num_bytes = 0
        if phase is Phase.ANSWER:
            self._places.answer(self._place)
        else:
            self._places.wait(self._place)
        self._bodies.end(self._place)
        if phase is Phase.BODY:
            self._bodies.begin(self._place)
            self._patience_ends = self.loop.time() + port_limits.BODY_GRACE_S
            self._set_timer(port_limits.BODY_GRACE_S if self._limits.min_body_rate else math.inf)
        elif phase in (Phase.HEAD, Phase.REST):
            self._set_timer(port_limits.HEAD_S)
        else:  # uvicorn closes idle connections
            self._stop_timer()

    def _on_timer(self) -> None:
        self._timer = None
        if self._phase is Phase.BODY:
            if self.flow.read_paused:  # the application has not read the bytes that came
                self._patience_ends = self.loop.time() + port_limits.BODY_GRACE_S
            if (left := self._patience_ends - self.loop.time()) > 0:
                self._set_timer(left)
                return
        self._drop({Phase.HEAD: HEAD_LATE, Phase.BODY: BODY_LATE}.get(self._phase))

    def _extend_patience(self, num_bytes: int) -> None:
        """Extends a body's deadline for received bytes, up to the grace that it began with."""
        if rate := self._limits.min_body_rate:
            most = self.loop.time() + port_limits.BODY_GRACE_S
            self._patience_ends = min(most, self._patience_ends + num_bytes / rate)

    def _watch_reading(self, num_unread: float) -> None:
        """Ends the connection if its client reads nothing of the rest of an answer."""
        now = self.transport.get_write_buffer_size()
        if now >= num_unread and self._phase is not Phase.ANSWER:
            self.transport.abort()
        elif now:
            self._unread_timer = self.loop.call_later(
                port_limits.UNREAD_S, self._watch_reading, now
            )
        else:
            self._unread_timer = None

    def _close(self, error: HttpError) -> bool:
        if self.transport.get_write_buffer_size():
            return False
        if not self._takes_no_more:  # else it has been refused, and nothing can be written
            self._let_go(error if self._phase is not Phase.IDLE else None)
        self.transport.abort()
        return True

    def _drop(self, error: HttpError | None) -> None:
        """Ends the connection in a way that lets the client read the error."""
        self._let_go(error)
        if self.transport.can_write_eof():
            self.transport.write_eof()  # closing with bytes unread would discard the answer
        else:
            self.transport.close()
        self._unread_timer = self.loop.call_later(port_limits.LINGER_S, self.transport.abort)

    def _let_go(self, error: HttpError | None) -> None:
        """Writes the error unless an answer has begun, and tells the application that the request
        ended."""
        self._stop_timers()
        self._unset_keepalive_if_required()
        self._takes_no_more = True
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if error is not None and not (is_answering and cycle.response_started):
            scope: Any = cycle.scope if is_answering else None
            self.transport.write(error.to_bytes(scope))
        if is_answering:
            cycle.disconnected = True
            cycle.message_event.set()

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


class BoundedConnection(Bounds, AutoHTTPProtocol, asyncio.BufferedProtocol):  # type: ignore[misc, valid-type]
    """A bounded connection with the parser that uvicorn chooses."""

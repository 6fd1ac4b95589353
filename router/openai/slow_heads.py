"""HTTP clients that connect and say nothing, or half a head, are cut off: they would stay for ever.

uvicorn limits the time between requests, but neither before the first one nor within a head
(slow loris). gRPC's ports have such a limit of their own.
"""

import asyncio

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_S = 60.0
"""For a request's line and headers to come; gRPC gives its clients as long for theirs."""


class HeadTimeout(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two, chosen at run time
    """A connection that is closed when a head that is due has not come in HEAD_S."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._follow()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _follow(self) -> None:
        """A head is due as long as no request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._cut_off)

    def _cut_off(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

"""Accepts the connections of an HTTP port as long as there are slots for them.

asyncio's own acceptor has no limit, and when the process can open no more files, it logs an error
with a traceback for each of thousands of attempts a second.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

from signalbox_rpc.http.connection_slots import ConnectionSlot, ConnectionSlots, NoFreeSlot
from signalbox_rpc.http.errors import HttpError
from signalbox_rpc.http.port_limits import TLS_HANDSHAKE_S
from signalbox_rpc.transport.addresses import client_of
from signalbox_rpc.transport.tls import HttpContexts

logger = logging.getLogger(__name__)

ACCEPTS_AT_A_TIME = 64
"""Connections accepted in one turn of the event loop; other work comes next."""
PAUSE_S = 0.2
"""Seconds without accepting after the system had no file, buffer or memory for a connection."""


@dataclass(frozen=True, slots=True)
class _Handshake:
    """Holds the slot of a connection that is being made."""

    task: "asyncio.Task[None]"

    def vacate(self, error: HttpError) -> bool:
        return self.task.cancel(error.message)


class Acceptor:
    """Accepts the connections of one listening socket; has the methods that uvicorn needs of a
    server.

    Args:
        connect: returns the protocol of a connection that has this slot.
    """

    def __init__(
        self,
        listener: socket.socket,
        slots: ConnectionSlots,
        connect: Callable[[ConnectionSlot], asyncio.BaseProtocol],
        *,
        contexts: HttpContexts | None,
    ) -> None:
        self._listener = listener
        self._slots = slots
        self._connect = connect
        self._contexts = contexts
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        self._listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accepts no more connections. Open connections stay."""
        self._is_closed = True
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listener.fileno())
        for task in self._connecting:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._resuming = self._loop.call_later(PAUSE_S, self._resume)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_A_TIME):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("cannot accept connections: %(reason)s", {"reason": str(error)})
                self._pause()
                return
            self._admit(connection, client_of(str(address[0])))

    def _admit(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        try:
            slot = self._slots.enter(address)
        except NoFreeSlot as error:
            logger.warning("connection refused: %(reason)s", {"reason": str(error)})
            self._refuse(connection, str(error))
            return
        task = self._loop.create_task(self._make(connection, slot))
        slot.holder = _Handshake(task)
        self._connecting.add(task)
        task.add_done_callback(lambda task: self._on_made(task, connection, slot))

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        with connection, contextlib.suppress(OSError):
            if self._contexts is None:  # a TLS client cannot read plain text
                error = HttpError(503, reason, closes=True, retry_after_s=1)
                connection.send(error.to_bytes())

    async def _make(self, connection: socket.socket, slot: ConnectionSlot) -> None:
        context = None if self._contexts is None else await self._contexts.current()
        await self._loop.connect_accepted_socket(
            lambda: self._connect(slot),
            connection,
            ssl=context,
            ssl_handshake_timeout=None if context is None else TLS_HANDSHAKE_S,
        )

    def _on_made(
        self, task: "asyncio.Task[None]", connection: socket.socket, slot: ConnectionSlot
    ) -> None:
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is None:
            return
        self._slots.leave(slot)
        connection.close()  # a task that is cancelled before it begins leaves it open
        if not task.cancelled() and not isinstance(
            error, OSError
        ):  # errors of TLS or of the network
            logger.error("a connection could not be made", exc_info=error)

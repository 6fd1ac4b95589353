"""An HTTP port on the service's own event loop: uvicorn without its log lines and signal handlers.

The limits for its clients are in `port_limits`, `client_connection`, `acceptor` and `head_gate`.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from signalbox_rpc.http import client_connection, port_limits
from signalbox_rpc.http.acceptor import Acceptor
from signalbox_rpc.http.connection_slots import ConnectionSlot, ConnectionSlots
from signalbox_rpc.http.head_gate import HeadGate
from signalbox_rpc.http.host_check import NO_ACCESS, HttpAccess
from signalbox_rpc.http.http_semantics import HttpSemantics
from signalbox_rpc.http.parsing_share import ParsingShare
from signalbox_rpc.http.port_limits import NORMAL, HttpLimits
from signalbox_rpc.http.unfinished_bodies import UnfinishedBodies
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.tls import HttpContexts, is_loopback

BACKLOG = 1024


class HttpPort:
    """Serves an application until it is stopped."""

    def __init__(
        self,
        app: Any,
        endpoint: Endpoint,
        *,
        names_callers: bool = False,
        access: HttpAccess = NO_ACCESS,
        limits: HttpLimits = NORMAL,
        **options: Any,
    ) -> None:
        """Stores the settings; `start` binds the port.

        Args:
            names_callers: True if only certain roles may call, as on the service's gRPC port.
            access: host names and origins that are answered beside the port's own.
            options: uvicorn's options that differ between ports.
        """
        self._endpoint = endpoint
        self._names_callers = names_callers
        self._config = uvicorn.Config(
            HttpSemantics(HeadGate(app, access=access, is_loopback=is_loopback(endpoint.host))),
            http=client_connection.BoundedConnection,
            # Twice, because our own limit comes first and is the same with both parsers.
            h11_max_incomplete_event_size=2 * port_limits.MAX_HEAD_BYTES,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            **options,
        )
        self._server = _Server(self._config, limits)
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._endpoint.port

    @property
    def address(self) -> str:
        """The listening address, "host:port"."""
        return self._endpoint.address

    @property
    def num_connections(self) -> int:
        return len(self._server.slots)

    async def start(self) -> int:
        """Listens and returns the port. Raises PortInUse, BindError or TlsError."""
        self._endpoint.check(names_callers=self._names_callers)
        family, _, _, _, where = socket.getaddrinfo(
            self._endpoint.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(where[:2], family=family, backlog=BACKLOG)
        self._endpoint = replace(self._endpoint, port=listener.getsockname()[1])
        self._config.load()
        if self._endpoint.tls.serves:
            self._server.contexts = HttpContexts(self._endpoint.tls)
        self._serving = asyncio.create_task(self._server.serve([listener]), name="http port")
        return self.port

    async def stop(self, *, flush_s: int) -> None:
        """Closes the port; clients have `flush_s` seconds to read what is written."""
        if self._serving is None:
            return
        self._config.timeout_graceful_shutdown = flush_s
        self._server.end()
        await self._serving


class _State(ServerState):
    """State that connections share, with a Date header that is made when an answer needs one."""

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers = headers
        self._second = -1
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._dated = [(b"date", formatdate(second, usegmt=True).encode()), *self._headers]
        return self._dated

    @default_headers.setter
    def default_headers(self, _: list[tuple[bytes, bytes]]) -> None:
        """Ignores the empty list that uvicorn begins with."""


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the service and accepts connections within limits."""

    def __init__(self, config: uvicorn.Config, limits: HttpLimits) -> None:
        super().__init__(config)
        self.contexts: HttpContexts | None = None
        self.slots = ConnectionSlots(
            most=limits.slots(), most_per_address=limits.max_connections_per_address
        )
        self._bodies = UnfinishedBodies(port_limits.MAX_UNFINISHED_BYTES, time.monotonic)
        self._share = ParsingShare()
        self._limits = limits
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Lets the server close its port and end."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Waits for `end`: uvicorn's own loop wakes an idle process ten times a second."""
        await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.server_state = _State(self.config.encoded_headers)
        acceptors = [
            Acceptor(listener, self.slots, self._connect, contexts=self.contexts)
            for listener in sockets or ()
        ]
        for acceptor in acceptors:
            acceptor.start()
        self.servers: list[Any] = [*acceptors]
        self.started = True

    def _connect(self, slot: ConnectionSlot) -> asyncio.BaseProtocol:
        connection = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=asyncio.get_running_loop(),
        )
        assert isinstance(connection, client_connection.LimitedParser)
        connection.bind(slot, self.slots, self._bodies, self._share, self._limits)
        return connection

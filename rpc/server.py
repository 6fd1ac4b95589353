"""The life of a gRPC server: bind, serve, drain.

Health turns NOT_SERVING before the listener closes, so that load balancers look away first. A
drain ends with the last call of our services; open health watches and reflection do not hold it.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc
from grpc_reflection.v1alpha import reflection

from rpc import health
from rpc.errors import ErrorInterceptor, Unavailable
from rpc.handlers import Context, Handler, wrap
from rpc.peers import Callers, PeerInterceptor
from rpc.tls import CLEAR, TlsConfig, exposure, server_credentials

logger = logging.getLogger(__name__)

PUBLIC_MAX_RECEIVE_BYTES = 4 << 20
INTERNAL_MAX_RECEIVE_BYTES = 64 << 20
YOUNG_OBJECTS = 20_000
"""Allocations, beyond deallocations, between two collections of the youngest."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    # Two servers would share a port silently.
    ("grpc.so_reuseport", 0),
    # A stream is silent during a long prefill, so client keepalive pings are not abuse.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Without it a stopped peer is noticed after a minute, whatever the keepalive says.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.max_send_message_length", -1),
)


HTTP_REMEDY = "choose another --http-port, or --no-http"


class BindError(OSError):
    """A server cannot listen where it should; says why in one line."""


class PortInUse(BindError):
    """Somebody else listens there."""


class _Calls(grpc.aio.ServerInterceptor):
    """Knows when no call of our services is running, and can end those of gRPC's own."""

    def __init__(self) -> None:
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = asyncio.Event()

    async def end_when_idle(self, *, timeout_s: float) -> None:
        """Waits for our calls, then ends health watches and reflection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        self._ending.set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        is_ours = not handler_call_details.method.startswith("/grpc.")
        return wrap(handler, self._count if is_ours else self._until_ending)

    async def _count(self, call: Awaitable[Any], _context: Context) -> Any:
        self._running += 1
        self._idle.clear()
        try:
            return await call
        finally:
            self._running -= 1
            if self._running == 0:
                self._idle.set()

    async def _until_ending(self, call: Awaitable[Any], _context: Context) -> Any:
        answer = asyncio.ensure_future(call)
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({answer, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Unavailable("this server is shutting down")
            return answer.result()
        finally:
            answer.cancel()
            ending.cancel()


class Server:
    """A grpc.aio server with our options, errors, health and, if asked for, reflection."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        reflection: bool = False,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        max_receive_bytes: int = PUBLIC_MAX_RECEIVE_BYTES,
        tls: TlsConfig = CLEAR,
        callers: Callers | None = None,
        on_malformed: Callable[[str], None] = lambda _method: None,
    ) -> None:
        """Makes a server that does not listen yet.

        Args:
            callers: the roles that may call what; None lets in every client.
            on_malformed: told the method of each call whose request is no message.
        """
        self.host = host
        self._tls = tls
        self._names_callers = callers is not None
        self.port = port
        self._reflection = reflection
        self._names: list[str] = []
        self._stopping: asyncio.Future[None] | None = None
        self._calls = _Calls()
        self._health = health.HealthServicer()
        if callers is not None and tls.identifies_clients:
            interceptors = [PeerInterceptor(callers, tls.peer_names), *interceptors]
        self._server = grpc.aio.server(
            interceptors=[ErrorInterceptor(on_malformed), self._calls, *interceptors],
            options=[*_OPTIONS, ("grpc.max_receive_message_length", max_receive_bytes)],
        )
        health.add_to_server(self._health, self._server)

    @property
    def address(self) -> str:
        """Where the server listens, "host:port"."""
        return join_address(self.host, self.port)

    def add(
        self,
        servicer: object,
        add_to_server: Callable[[Any, grpc.aio.Server], None],
        *,
        name: str,
    ) -> None:
        """Adds a service under its full name; it is not serving until `set_serving` says so."""
        add_to_server(servicer, self._server)
        self._names.append(name)
        self._health.set(name, serving=False)

    async def start(self) -> int:
        """Listens and returns the port. Raises PortInUse, BindError or TlsError."""
        if self._reflection:
            names = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        check_exposure(self.address, self._tls, names_callers=self._names_callers)
        check_free(self.host, self.port)  # gRPC itself says only that it failed
        try:
            self.port = self._listen()
        except RuntimeError:
            raise PortInUse(f"cannot listen on {self.address}: the port is taken") from None
        await self._server.start()
        return self.port

    def _listen(self) -> int:
        if not self._tls.serves:
            return self._server.add_insecure_port(self.address)
        return self._server.add_secure_port(self.address, server_credentials(self._tls))

    def set_serving(self, *names: str, serving: bool) -> None:
        """Sets the health of services, and the overall health: serving when all are."""
        for name in names:
            self._health.set(name, serving=serving)

    def is_serving(self, name: str) -> bool:
        """Returns the health of a service."""
        return self._health.is_serving(name)

    def stop_serving(self) -> None:
        """Reports every service as not serving, for good; calls are still answered."""
        self._health.close()

    async def drain(self, *, grace_s: float) -> None:
        """Takes no new calls and returns when those that run have ended, cut off after grace_s."""
        self.stop_serving()
        if self._stopping is None:  # gRPC crashes when two tasks stop one server
            self._stopping = asyncio.ensure_future(self._server.stop(grace_s))
            await self._calls.end_when_idle(timeout_s=grace_s)
        await self._stopping


def join_address(host: str, port: int) -> str:
    """Returns "host:port", with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_exposure(address: str, tls: TlsConfig, *, names_callers: bool = False) -> None:
    """Raises BindError where others would reach a port that nothing protects."""
    host = address.rpartition(":")[0].strip("[]")
    if reason := exposure(host, tls, names_callers=names_callers):
        raise BindError(f"cannot listen on {address} {reason}")


def check_free(host: str, port: int, *, remedy: str = "choose another --port") -> None:
    """Raises PortInUse or BindError unless a server could listen there now."""
    address = join_address(host, port)
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"cannot listen on {address}: the port is in use; {remedy}") from None
        raise BindError(f"cannot listen on {address}: {error.strerror or error}") from None


class Drains(Protocol):
    """A server, or several that end together."""

    def stop_serving(self) -> None: ...

    async def drain(self, *, grace_s: float) -> None: ...


async def run_until_signalled(
    server: Drains,
    *,
    grace_s: float,
    on_drain: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal exits at once with status 1.

    Args:
        grace_s: for `on_drain` and the calls that run, together.
        on_drain: awaited between NOT_SERVING and the closing of the listener.
    """
    _settle_garbage_collector()
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, signalled)
    await signalled.wait()
    ends_at = loop.time() + grace_s
    logger.info("draining for up to %.1f s", grace_s)
    server.stop_serving()
    if on_drain:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await on_drain()
    await server.drain(grace_s=max(0.0, ends_at - loop.time()))


def _settle_garbage_collector() -> None:
    """Keeps collections from walking what lives as long as the process, and makes them rare.

    Nearly everything dies by its reference count. With the defaults the collector takes 2 % of a
    service's CPU, and stops a worker that has loaded torch for tens of milliseconds at a time.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)


def _on_signal(signalled: asyncio.Event) -> None:
    if signalled.is_set():
        os._exit(1)
    signalled.set()

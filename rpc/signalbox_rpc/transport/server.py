"""A gRPC server with our defaults: bind, serve, drain.

Health turns NOT_SERVING before the listener closes, so that load balancers stop sending first. A
drain ends with the last call of our services; it does not wait for open health watches and
reflection.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc

from signalbox_contract.errors import Unavailable
from signalbox_rpc.interceptors.call_handlers import Context, Handler, WrappingInterceptor, wrap
from signalbox_rpc.interceptors.error_interceptor import ErrorInterceptor
from signalbox_rpc.interceptors.peer_roles import Callers, PeerInterceptor
from signalbox_rpc.limits.call_bounds import NORMAL_BOUNDS, CallBounds, CallBoundsInterceptor
from signalbox_rpc.transport import health, reflection
from signalbox_rpc.transport.listening_ports import Endpoint, PortInUse
from signalbox_rpc.transport.tls import server_credentials

PUBLIC_MAX_RECEIVE_BYTES = 4 << 20
INTERNAL_MAX_RECEIVE_BYTES = 64 << 20

_OPTIONS: tuple[tuple[str, int], ...] = (
    # Otherwise two servers would share a port without an error.
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

CUT_OFF_S = 5.0
"""Seconds that calls get to end after they were cut off."""
UNREAD_BYTES = 64 << 10
"""Bytes that a client may send of a call before it is read; then a message gets a window of a
megabyte. All small requests of a connection share this window, so less would slow a distant
gateway."""
_OF_CLIENTS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
    # Otherwise gRPC lets a fast client send up to 512 MB of each call that nothing reads yet.
    ("grpc.http2.bdp_probe", 0),
)


class _Calls(WrappingInterceptor):
    """Counts the running calls of our services, and can end the calls of gRPC's own services."""

    def __init__(self) -> None:
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = asyncio.Event()
        self._tasks = set[asyncio.Task[Any]]()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await super().intercept_service(continuation, handler_call_details)

    async def end_cut_off(self) -> None:
        """Waits for the `finally` blocks of calls that gRPC has cut off.

        The end of the event loop would break them off, and gRPC would log a traceback of each.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CUT_OFF_S)

    async def end_when_idle(self, *, timeout_s: float) -> None:
        """Waits for our calls, then ends health watches and reflection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        self._ending.set()

    def wrapped(self, handler: Handler, method: str) -> Handler:
        is_ours = not method.startswith("/grpc.")
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
    """A grpc.aio server with our options, errors, health and, if enabled, reflection."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        reflection: bool = False,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        max_receive_bytes: int = PUBLIC_MAX_RECEIVE_BYTES,
        bounds: CallBounds = NORMAL_BOUNDS,
        callers: Callers | None = None,
        on_malformed: Callable[[str], None] = lambda _method: None,
    ) -> None:
        """Makes a server that does not listen yet.

        Args:
            callers: the roles that may call each method; None lets in every client.
            bounds: limits of connections, of calls without a request, and of calls that last.
            on_malformed: called with the method of each call that received a malformed request.
        """
        self._endpoint = endpoint
        self._names_callers = callers is not None
        self._reflection = reflection
        self._names: list[str] = []
        self._stopping: asyncio.Future[None] | None = None
        self._calls = _Calls()
        self._health = health.HealthServicer()
        if callers is not None and endpoint.tls.identifies_clients:
            interceptors = [PeerInterceptor(callers, endpoint.tls.peer_names), *interceptors]
        self._server = grpc.aio.server(
            interceptors=[
                ErrorInterceptor(on_malformed),
                CallBoundsInterceptor(bounds),
                self._calls,
                *interceptors,
            ],
            options=[
                *_OPTIONS,
                *bounds.options(),
                *(_OF_CLIENTS if max_receive_bytes <= PUBLIC_MAX_RECEIVE_BYTES else ()),
                ("grpc.max_receive_message_length", max_receive_bytes),
            ],
        )
        health.add_to_server(self._health, self._server)

    @property
    def port(self) -> int:
        return self._endpoint.port

    @property
    def address(self) -> str:
        """The server's listening address, "host:port"."""
        return self._endpoint.address

    def add(
        self,
        servicer: object,
        add_to_server: Callable[[Any, grpc.aio.Server], None],
        *,
        name: str,
    ) -> None:
        """Adds a service under its full name; its health is NOT_SERVING until `set_serving`."""
        add_to_server(servicer, self._server)
        self._names.append(name)
        self._health.set(name, serving=False)

    async def start(self) -> int:
        """Listens and returns the port. Raises PortInUse, BindError or TlsError."""
        try:
            self._bind()
        except BaseException:
            await self._end_unstarted()
            raise
        await self._server.start()
        return self.port

    def _bind(self) -> None:
        if self._reflection:
            names = (*self._names, health.SERVICE_NAME)
            reflection.add_to_server(names, self._server)
        # gRPC reports only that binding failed.
        self._endpoint.check(names_callers=self._names_callers)
        try:
            self._endpoint = replace(self._endpoint, port=self._listen())
        except RuntimeError:
            raise PortInUse(f"cannot listen on {self.address}: the port is taken") from None

    async def _end_unstarted(self) -> None:
        """Starts the server in order to stop it: gRPC prints an error for others at the
        interpreter's end."""
        await self._server.start()
        await self._server.stop(None)

    def _listen(self) -> int:
        if not self._endpoint.tls.serves:
            return self._server.add_insecure_port(self.address)
        credentials = server_credentials(self._endpoint.tls)
        return self._server.add_secure_port(self.address, credentials)

    def set_serving(self, *names: str, serving: bool) -> None:
        """Sets the health of services, and the overall health: serving when all are."""
        for name in names:
            self._health.set(name, serving=serving)

    def set_parts(self, parts: Mapping[str, bool]) -> None:
        """Sets the health of parts of the services, such as models, by name."""
        self._health.set_parts(parts)

    def is_serving(self, name: str) -> bool:
        """Returns the health of a service."""
        return self._health.is_serving(name)

    def stop_serving(self) -> None:
        """Reports every service as not serving, permanently; calls are still answered."""
        self._health.close()

    async def drain(self, *, grace_s: float) -> None:
        """Accepts no new calls; returns when the running ones have ended, cut off after grace_s."""
        self.stop_serving()
        if self._stopping is None:  # gRPC crashes when two tasks stop one server
            self._stopping = asyncio.ensure_future(self._server.stop(grace_s))
            await self._calls.end_when_idle(timeout_s=grace_s)
        await self._stopping
        await self._calls.end_cut_off()

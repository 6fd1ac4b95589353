"""The ports and sockets of a local stack, chosen before its first process starts."""

import socket

from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.start_checks import LOOPBACK
from signalbox_rpc.lifetime.private_folder import PrivateFolder
from signalbox_rpc.transport.listening_ports import (
    UNSPECIFIED_HOSTS,
    BindError,
    check_free,
    join_address,
)


class StackAddresses:
    """Addresses of one `signalbox serve`. Others reach the router's, and on Ray the scheduler's."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self.http_port = settings.http_port or free_port()
        self.grpc_port = settings.grpc_port or free_port()
        if settings.takes_other_grpc_port:
            self.grpc_port = self._free_port(settings.host, self.grpc_port)
        # The port after the router's is the one that `signalbox top` tries.
        self.scheduler_port = self._free_port(settings.scheduler_host, self.grpc_port + 1)
        self._folder: PrivateFolder | None = None
        self._metrics_sockets: dict[str, str] = {}

    @property
    def router(self) -> str:
        """Address of the router for clients."""
        return join_address(_reachable(self._settings.host), self.grpc_port)

    @property
    def scheduler(self) -> str:
        """Address of the scheduler, for workers, `signalbox top` and similar commands."""
        return join_address(self._settings.scheduler_host, self.scheduler_port)

    @property
    def http_url(self) -> str | None:
        """URL of the HTTP API for clients, if it is on."""
        return f"{self._http_root}/v1" if self._settings.http else None

    @property
    def console_url(self) -> str | None:
        """URL of the console for a browser, if it is served."""
        is_served = self._settings.http and self._settings.serves_console
        return f"{self._http_root}/" if is_served else None

    @property
    def _http_root(self) -> str:
        scheme = "https" if self._settings.tls_cert else "http"
        return f"{scheme}://{join_address(_reachable(self._settings.host), self.http_port)}"

    def metrics_port(self, place: int) -> int | None:
        """Returns the metrics port of a process behind the router: the next ones after the
        router's."""
        first = self._settings.metrics_port
        return first + place if first else first

    def metrics_socket(self, name: str, *, file: str = "") -> str | None:
        """Returns the path of a process's metrics socket; None if the HTTP API is off.

        Args:
            file: name of the socket's file (default: one made of `name`).
        """
        if not self._settings.http:
            return None
        if self._folder is None:  # a process that is started next removes it if this one cannot
            self._folder = PrivateFolder("stack")
        path = self._folder.path / (file or name.replace(" ", "-"))
        return self._metrics_sockets.setdefault(name, str(path))

    @property
    def metrics_sources(self) -> str:
        """The metrics sockets, as the router takes them."""
        return ",".join(f"{name}={path}" for name, path in self._metrics_sockets.items())

    def close(self) -> None:
        """Removes the folder of the sockets."""
        if self._folder is not None:
            self._folder.close()

    def _free_port(self, host: str, port: int) -> int:
        """Returns the port, or any if it is taken.

        Other configured ports are left free until their services start.
        """
        settings = self._settings
        others = {self.http_port} if settings.http else set()
        if settings.metrics_port:
            first = settings.metrics_port
            others |= {*range(first, first + 2 + settings.workers)}
        try:
            check_free(host, port)
        except (BindError, OverflowError):
            return free_port(host)
        return free_port(host) if port in others else port


class ModelAddresses:
    """Addresses of the processes of one of several models. Its port is kept for as long as they may
    be started."""

    def __init__(self, stack: StackAddresses, *, name: str, number: int) -> None:
        """Args: number: of the model, for the files of its sockets: its name may be no file's. The
        first one's scheduler has the port that `signalbox top` tries."""
        self._stack = stack
        self._name = name
        self._number = number
        self._reserved = reserve_port(0 if number else stack.scheduler_port)
        self.scheduler_port: int = self._reserved.getsockname()[1]

    @property
    def scheduler(self) -> str:
        """Address of the scheduler."""
        return join_address(LOOPBACK, self.scheduler_port)

    def metrics_port(self, place: int) -> int | None:
        """Returns None: the processes are started too often to be scraped one by one."""
        return None

    def metrics_socket(self, name: str) -> str | None:
        """Returns the path of a process's metrics socket; None if the HTTP API is off."""
        file = f"{self._number}-{name.replace(' ', '-')}"
        return self._stack.metrics_socket(f"{self._name} {name}", file=file)

    def close(self) -> None:
        """Gives the port back."""
        self._reserved.close()


def reserve_port(port: int = 0) -> socket.socket:
    """Returns a socket that keeps a loopback port, or any if it is 0, from programs that take any.

    A server of ours may listen there meanwhile.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC sets it
    reserved.bind((LOOPBACK, port))
    return reserved


def _reachable(host: str) -> str:
    return LOOPBACK if host in UNSPECIFIED_HOSTS else host


def free_port(host: str = LOOPBACK) -> int:
    """Returns a port on `host` that nothing listens on. Raises BindError for one of others."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(where)
            port: int = probe.getsockname()[1]
            return port
    except OSError as error:
        raise BindError(f"cannot listen on {host}: {error.strerror or error}") from None

"""Checks whether a server may listen on a port: it must be free and sufficiently protected.

gRPC reports only that binding failed, so the causes are checked before. All our servers use these
checks, those of gRPC and of HTTP.
"""

import errno
import socket
from dataclasses import dataclass

from signalbox_rpc.transport.tls import CLEAR, TlsConfig, exposure

PORT_REMEDY = "choose another --port"
GRPC_REMEDY = "choose another --grpc-port"
HTTP_REMEDY = "choose another --port, or --no-http"
METRICS_REMEDY = "choose another --metrics-port"


UNSPECIFIED_HOSTS = ("", "0.0.0.0", "::")
"""Hosts to listen on at all addresses, which no client can call."""


class BindError(OSError):
    """A server cannot listen on its address; the message gives the reason in one line."""


class PortInUse(BindError):
    """Another process listens on the port."""


def join_address(host: str, port: int) -> str:
    """Returns "host:port", with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_exposure(address: str, tls: TlsConfig, *, names_callers: bool = False) -> None:
    """Raises BindError if other machines would reach a port without protection."""
    host = address.rpartition(":")[0].strip("[]")
    if reason := exposure(host, tls, names_callers=names_callers):
        raise BindError(f"cannot listen on {address} {reason}")


def check_free(host: str, port: int, *, remedy: str = PORT_REMEDY) -> None:
    """Raises PortInUse or BindError unless a server could listen on the port now."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The host and port that a server listens on, and their protection."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 is any free port."""
    tls: TlsConfig = CLEAR
    remedy: str = PORT_REMEDY
    """Advice in the error if the port is in use."""

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    def check(self, *, names_callers: bool) -> None:
        """Raises PortInUse or BindError unless a server may listen here; see `check_exposure`."""
        check_exposure(self.address, self.tls, names_callers=names_callers)
        check_free(self.host, self.port, remedy=self.remedy)

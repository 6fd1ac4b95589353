"""Where a server may listen: ports that are free, and that nobody is exposed by.

gRPC says only that binding failed, so what would make it fail is looked for before. For every
server of ours, gRPC's or not.
"""

import errno
import socket

from rpc.tls import TlsConfig, exposure

PORT_REMEDY = "choose another --port"
GRPC_REMEDY = "choose another --grpc-port"
HTTP_REMEDY = "choose another --http-port, or --no-http"


class BindError(OSError):
    """A server cannot listen where it should; says why in one line."""


class PortInUse(BindError):
    """Somebody else listens there."""


def join_address(host: str, port: int) -> str:
    """Returns "host:port", with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_exposure(address: str, tls: TlsConfig, *, names_callers: bool = False) -> None:
    """Raises BindError where others would reach a port that nothing protects."""
    host = address.rpartition(":")[0].strip("[]")
    if reason := exposure(host, tls, names_callers=names_callers):
        raise BindError(f"cannot listen on {address} {reason}")


def check_free(host: str, port: int, *, remedy: str = PORT_REMEDY) -> None:
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

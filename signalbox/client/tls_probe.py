"""Finds out what an address that cannot be called speaks, so that an error names the flag."""

import socket
import ssl

PROBE_TIMEOUT_S = 2.0


def listens(address: str) -> bool:
    """Returns whether "HOST:PORT" accepts a connection; blocks for at most `PROBE_TIMEOUT_S`."""
    try:
        with _connect(address):
            return True
    except (OSError, ValueError):
        return False


def speaks_http(address: str) -> bool:
    """Returns whether a service at "HOST:PORT" answers in HTTP/1, which gRPC's never do.

    Blocks for at most twice `PROBE_TIMEOUT_S` seconds.
    """
    request = f"GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    try:
        with _connect(address) as connection:
            connection.sendall(request.encode())
            return connection.recv(5) == b"HTTP/"
    except (OSError, ValueError):
        return False


def tls_hint(address: str, *, uses_tls: bool = False) -> str:
    """Returns the end of an error's sentence; "" if TLS does not explain the failure.

    Connects, and tries a handshake without checking the certificate. Blocks for at most twice
    `PROBE_TIMEOUT_S` seconds.

    Args:
        address: "HOST:PORT" that a call did not reach.
        uses_tls: True if the call used TLS.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _connect(address) as connection:
            try:
                context.wrap_socket(connection, server_hostname=_host(address)).close()
            except OSError:  # a failed handshake raises this too
                return "; the service there has no TLS: leave --tls-ca out" if uses_tls else ""
    except (OSError, ValueError):
        return ""
    return (
        "; the service there speaks TLS: --tls-ca names the authority of its certificate, and"
        " --tls-cert and --tls-key the caller's certificate, if it asks for one"
    )


def _connect(address: str) -> socket.socket:
    """Connects. Raises OSError, or ValueError for an invalid port."""
    return socket.create_connection(
        (_host(address), int(address.rpartition(":")[2])), PROBE_TIMEOUT_S
    )


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")

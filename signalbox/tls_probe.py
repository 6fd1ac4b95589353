"""Tells whether an address that no call reaches speaks TLS, so that an error names the flag."""

import socket
import ssl

PROBE_TIMEOUT_S = 2.0


def listens(address: str) -> bool:
    """Returns whether "HOST:PORT" accepts a connection; blocks for at most `PROBE_TIMEOUT_S`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False


def tls_hint(address: str, *, uses_tls: bool = False) -> str:
    """Returns the end of an error's sentence; "" if TLS does not explain the failure.

    Connects, and tries a handshake without a look at the certificate. Blocks for at most twice
    `PROBE_TIMEOUT_S` seconds.

    Args:
        address: "HOST:PORT", which a call did not reach.
        uses_tls: whether the call used TLS.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, int(port)), PROBE_TIMEOUT_S) as connection:
            try:
                context.wrap_socket(connection, server_hostname=host).close()
            except (ssl.SSLError, OSError):
                return "; the service there has no TLS: leave --tls-ca out" if uses_tls else ""
    except (OSError, ValueError):
        return ""
    return (
        "; the service there speaks TLS: --tls-ca names the authority of its certificate, and"
        " --tls-cert and --tls-key the caller's certificate, if it asks for one"
    )

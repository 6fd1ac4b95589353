"""Certificates: what a process shows, whom it believes, and how they change while it runs.

One set of PEM files serves every port and channel of a process. Servers look at the files' times at
each handshake, so a certificate is renewed by replacing the files; channels read them when opened.
"""

import ipaddress
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc

from rpc.peers import PeerNames

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TlsError(ValueError):
    """A certificate, key or CA cannot be used; says which file and why in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """PEM files by path, and who may call whom; without files everything is in the clear."""

    cert: str | None = None
    """This process's certificate with its chain, shown to clients and to servers."""
    key: str | None = None
    ca: str | None = None
    """Who vouches for the servers that this process calls; with it every channel uses TLS."""
    client_ca: str | None = None
    """Who vouches for clients; with it every client must show a certificate."""
    peer_names: PeerNames = field(default_factory=PeerNames)
    insecure: bool = False
    """Whether a port that others can reach may do without."""

    def __post_init__(self) -> None:
        if (self.cert is None) is not (self.key is None):
            raise ValueError("tls_cert and tls_key go together; give both")
        if self.client_ca and not self.cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")

    @property
    def serves(self) -> bool:
        """Whether servers use TLS."""
        return self.cert is not None

    @property
    def dials(self) -> bool:
        """Whether channels use TLS."""
        return self.ca is not None

    @property
    def identifies_clients(self) -> bool:
        return self.client_ca is not None


CLEAR = TlsConfig()


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches what listens on a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def exposure(host: str, tls: TlsConfig, *, names_callers: bool) -> str | None:
    """Returns why nobody should listen on a host with so little protection, and the remedy.

    Args:
        names_callers: whether the service is for certain roles alone.
    """
    if tls.insecure or is_loopback(host) or (tls.serves and not names_callers):
        return None
    if not names_callers:
        return "in the clear where others reach it; give --tls-cert and --tls-key, or --insecure"
    if tls.identifies_clients:
        return None
    return (
        "where anybody who reaches it may call; give --tls-cert, --tls-key and --tls-client-ca, or"
        " --insecure in a network that you trust"
    )


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Returns what a gRPC server listens with. Raises TlsError."""
    files = _Files(tls)
    initial = _server_certificates(tls)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        return files.renewed(lambda: _server_certificates(tls))

    return grpc.dynamic_ssl_server_credentials(
        initial,
        renewed,  # type: ignore[arg-type]  # None, which the stubs leave out, is no change
        require_client_authentication=tls.identifies_clients,
    )


def channel_credentials(tls: TlsConfig) -> grpc.ChannelCredentials:
    """Returns what a channel connects with, as the files are now. Raises TlsError."""
    if tls.ca is None:
        raise TlsError("a channel with TLS needs tls_ca")
    _load_authorities(ssl.create_default_context(), "tls_ca", tls.ca)
    if tls.cert is None or tls.key is None:
        return grpc.ssl_channel_credentials(_read(tls.ca))
    _server_context(tls)
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))


def http_context(tls: TlsConfig) -> ssl.SSLContext:
    """Returns what an HTTP server listens with. Raises TlsError."""
    files, first = _Files(tls), _server_context(tls)
    current = first

    def choose(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal current
        current = files.renewed(lambda: _server_context(tls)) or current
        connection.context = current

    first.sni_callback = choose
    return first


class _Files:
    """Notices that files have been replaced."""

    def __init__(self, tls: TlsConfig) -> None:
        self._paths = [path for path in (tls.cert, tls.key, tls.client_ca) if path]
        self._seen = self._state()

    def renewed(self, load: Callable[[], T]) -> T | None:
        """Returns what the files hold, if they have changed and make sense."""
        state = self._state()
        if state == self._seen:
            return None
        self._seen = state
        try:
            loaded = load()
        except TlsError as error:  # perhaps replaced only in part so far
            logger.warning("%s; the certificate from before stays in use", error)
            return None
        logger.info("certificate read again from %s", self._paths[0])
        return loaded

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [_state_of(path) for path in self._paths]


def _state_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _server_certificates(tls: TlsConfig) -> grpc.ServerCertificateConfiguration:
    assert tls.cert is not None and tls.key is not None
    _server_context(tls)  # gRPC itself says nothing of what is wrong with a file
    authorities = _read(tls.client_ca) if tls.client_ca else None
    pair = (_read(tls.key), _read(tls.cert))
    return grpc.ssl_server_certificate_configuration([pair], authorities)


def _server_context(tls: TlsConfig) -> ssl.SSLContext:
    assert tls.cert is not None and tls.key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A password would be asked for on the terminal.
        context.load_cert_chain(tls.cert, tls.key, password=lambda: b"")
    except OSError as error:
        raise TlsError(f"cannot use tls_cert {tls.cert} with tls_key {tls.key}: {error}") from None
    if tls.client_ca:
        _load_authorities(context, "tls_client_ca", tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_authorities(context: ssl.SSLContext, setting: str, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise TlsError(f"cannot use {setting} {path}: {error}") from None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsError(f"cannot read {path}: {error.strerror}") from None

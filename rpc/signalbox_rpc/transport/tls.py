"""Certificates: what a process shows, which authorities it trusts, and how files are renewed.

One set of PEM files serves every port and channel of a process. Servers check the files' times at
each handshake, so replacing the files renews a certificate; channels read them when opened.
"""

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc

from signalbox_rpc.interceptors.peer_roles import PeerNames

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TlsError(ValueError):
    """A certificate, key or CA cannot be used; the message names the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Paths of PEM files, and the allowed peers. Without files all traffic is in the clear."""

    cert: str | None = None
    """Certificate of this process with its chain, shown to clients and to servers."""
    key: str | None = None
    ca: str | None = None
    """Authorities that sign servers' certificates; if set, every channel uses TLS."""
    client_ca: str | None = None
    """Authorities that sign clients' certificates; if set, every client must show one."""
    peer_names: PeerNames = field(default_factory=PeerNames)
    insecure: bool = False
    """True allows a port that others can reach without TLS or client certificates."""

    def __post_init__(self) -> None:
        if (self.cert is None) is not (self.key is None):
            raise ValueError("tls_cert and tls_key go together; give both")
        if self.client_ca and not self.cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")

    @property
    def serves(self) -> bool:
        """True if servers use TLS."""
        return self.cert is not None

    @property
    def dials(self) -> bool:
        """True if channels use TLS."""
        return self.ca is not None

    @property
    def identifies_clients(self) -> bool:
        return self.client_ca is not None


CLEAR = TlsConfig()


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches a port on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def exposure(host: str, tls: TlsConfig, *, names_callers: bool) -> str | None:
    """Returns why a port on `host` has too little protection, and the remedy; None if it is safe.

    Args:
        names_callers: True if only certain roles may call the service.
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
    """Returns the credentials of a gRPC server. Raises TlsError."""
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
    """Returns the credentials of a channel, from the files as they are now. Raises TlsError."""
    if tls.ca is None:
        raise TlsError("a channel with TLS needs --tls-ca")
    _load_authorities(ssl.create_default_context(), "--tls-ca", tls.ca)
    if tls.cert is None or tls.key is None:
        return grpc.ssl_channel_credentials(_read("--tls-ca", tls.ca))
    _server_context(tls)
    return grpc.ssl_channel_credentials(
        _read("--tls-ca", tls.ca), _read("--tls-key", tls.key), _read("--tls-cert", tls.cert)
    )


def check_files(tls: TlsConfig) -> None:
    """Raises TlsError if the files cannot be used by a server or by a channel."""
    if tls.serves:
        _server_context(tls)
    if tls.ca is not None:
        channel_credentials(tls)


class HttpContexts:
    """The TLS context of an HTTP server, from the files as they are when a connection comes."""

    def __init__(self, tls: TlsConfig) -> None:
        """Reads the files. Raises TlsError."""
        self._tls = tls
        self._files, self._current = _Files(tls), _server_context(tls)
        self._reading = asyncio.Lock()

    async def current(self) -> ssl.SSLContext:
        """Returns the context; a thread reads files that have changed, authorities by thousands."""
        async with self._reading:
            if self._files.have_changed:
                load = partial(_server_context, self._tls)
                renewed = await asyncio.to_thread(self._files.renewed, load)
                self._current = renewed or self._current
            return self._current


class _Files:
    """Watches the files for replacement."""

    def __init__(self, tls: TlsConfig) -> None:
        self._paths = [path for path in (tls.cert, tls.key, tls.client_ca) if path]
        self._seen = self._state()

    @property
    def have_changed(self) -> bool:
        return self._state() != self._seen

    def renewed(self, load: Callable[[], T]) -> T | None:
        """Returns the result of `load` if the files have changed and are valid; else None."""
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
    _server_context(tls)  # gRPC itself does not report what is wrong with a file
    authorities = _read("--tls-client-ca", tls.client_ca) if tls.client_ca else None
    pair = (_read("--tls-key", tls.key), _read("--tls-cert", tls.cert))
    return grpc.ssl_server_certificate_configuration([pair], authorities)


def _server_context(tls: TlsConfig) -> ssl.SSLContext:
    assert tls.cert is not None and tls.key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _read("--tls-cert", tls.cert)  # the call below names no file
    _read("--tls-key", tls.key)
    try:
        # Otherwise a password would be asked for on the terminal.
        context.load_cert_chain(tls.cert, tls.key, password=lambda: b"")
    except OSError as error:
        raise TlsError(
            f"cannot use --tls-cert {tls.cert} with --tls-key {tls.key}: {error}"
        ) from None
    if tls.client_ca:
        _load_authorities(context, "--tls-client-ca", tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_authorities(context: ssl.SSLContext, flag: str, path: str) -> None:
    _read(flag, path)
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise TlsError(f"cannot use {flag} {path}: {error}") from None


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsError(f"cannot read {flag} {path}: {error.strerror}") from None

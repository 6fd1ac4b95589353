"""Opens channels to a router: certificates, API key, keepalive."""

import math
from dataclasses import dataclass
from pathlib import Path

import grpc

UNARY_TIMEOUT_S = 10.0
"""Seconds for calls that generate no text, unless the caller gives another timeout."""

_FOREVER_S = 1e9
"""Seconds from which a timeout is unlimited: gRPC treats a much later deadline as passed."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    # A router that has stopped is noticed within seconds, not minutes.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", 64 << 20),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Options of a connection beside the address."""

    api_key: str | None = None
    tls_ca: Path | str | None = None
    """PEM file of the authority of the router's certificate; without it the connection is in the
    clear."""
    tls_cert: Path | str | None = None
    tls_key: Path | str | None = None
    """PEM files of a client certificate, if the router asks for one."""
    tls_server_name: str | None = None
    """Host name in the router's certificate, if it differs from the address's host."""

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        for name in ("tls_cert", "tls_server_name"):
            if getattr(self, name) is not None and self.tls_ca is None:
                raise ValueError(f"{name} needs tls_ca")
        if self.api_key and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("api_key holds what no header can, such as the end of a line")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of each call."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()

    def open(self, address: str) -> grpc.Channel:
        credentials = self._credentials()
        if credentials is None:
            return grpc.insecure_channel(address, options=self._options)
        return grpc.secure_channel(address, credentials, options=self._options)

    def open_async(self, address: str) -> grpc.aio.Channel:
        credentials = self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=self._options)
        return grpc.aio.secure_channel(address, credentials, options=self._options)

    @property
    def _options(self) -> list[tuple[str, int | str]]:
        options: list[tuple[str, int | str]] = [*_OPTIONS]
        if self.tls_server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.tls_server_name))
        return options

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if self.tls_ca is None:
            return None
        return grpc.ssl_channel_credentials(
            _read(self.tls_ca),
            private_key=_read(self.tls_key),
            certificate_chain=_read(self.tls_cert),
        )


def deadline_s(timeout_s: float | None) -> float | None:
    """Returns the timeout for gRPC; None is no deadline. Raises ValueError for NaN."""
    if timeout_s is None or timeout_s > _FOREVER_S:
        return None
    if math.isnan(timeout_s):
        raise ValueError("timeout_s is not a number")
    return timeout_s


def _read(path: Path | str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()

"""Connections of commands to a service: certificates and key, from flags or the environment."""

import argparse
import os
from dataclasses import dataclass
from typing import Any

import grpc

from signalbox.settings.environment import ENV_PREFIX
from signalbox_client import AsyncClient
from signalbox_rpc.transport.addresses import address_fault
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig

_FLAGS = {
    "tls_ca": ("FILE", "PEM file: certificate authority of the service; the connection uses TLS"),
    "tls_cert": ("FILE", "PEM file: certificate to show, where the service asks for one"),
    "tls_key": ("FILE", "PEM file: its private key"),
    "tls_server_name": ("NAME", "host name in the service's certificate, if not its address's"),
}
_API_KEY = {"api_key": ("KEY", "key to show to the router; better set in the environment")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Options of a connection beside its address."""

    tls: TlsConfig = CLEAR
    server_name: str | None = None
    api_key: str | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()


PLAIN = Connection()


def router_client(address: str, how: Connection = PLAIN) -> AsyncClient:
    """Returns a client with the project's channel options. Raises TlsError or ValueError."""
    return AsyncClient(address, channel=dial(address, how), api_key=how.api_key)


def dial(address: str, how: Connection = PLAIN) -> grpc.aio.Channel:
    """Returns a channel to a flag's address. Raises TlsError, or ValueError for an invalid one."""
    if fault := address_fault(address):
        raise ValueError(f"{address!r} is {fault}")
    return open_channel(address, tls=how.tls, server_name=how.server_name)


def add_connection_flags(parser: argparse.ArgumentParser, *, api_key: bool = False) -> None:
    """Adds the TLS flags, and --api-key for a command that calls a router."""
    for name, (metavar, text) in {**_FLAGS, **(_API_KEY if api_key else {})}.items():
        variable = ENV_PREFIX + name.upper()
        parser.add_argument(
            "--" + name.replace("_", "-"),
            metavar=metavar,
            default=os.environ.get(variable),
            help=f"{text} (env {variable})",
        )


def connection(options: dict[str, Any]) -> Connection:
    """Returns the connection that the flags describe. Raises ValueError."""
    if (options.get("tls_cert") or options.get("tls_server_name")) and not options.get("tls_ca"):
        raise ValueError("--tls-cert and --tls-server-name need --tls-ca")
    if bool(options.get("tls_cert")) is not bool(options.get("tls_key")):
        raise ValueError("--tls-cert and --tls-key go together; give both")
    return Connection(
        tls=TlsConfig(
            ca=options.get("tls_ca"), cert=options.get("tls_cert"), key=options.get("tls_key")
        ),
        server_name=options.get("tls_server_name"),
        api_key=options.get("api_key"),
    )

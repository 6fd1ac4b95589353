"""How commands that ask a service reach it: certificates and key, from flags or environment."""

import argparse
import os
from dataclasses import dataclass
from typing import Any

import grpc

from rpc.addresses import address_fault
from rpc.client import open_channel
from rpc.tls import CLEAR, TlsConfig
from signalbox.environment import ENV_PREFIX
from signalbox_client import AsyncClient

_FLAGS = {
    "tls_ca": ("FILE", "PEM file: certificate authority of the service; the connection uses TLS"),
    "tls_cert": ("FILE", "PEM file: certificate to show, where the service asks for one"),
    "tls_key": ("FILE", "PEM file: its private key"),
    "tls_server_name": ("NAME", "what the service's certificate is for, if not its host"),
}
_API_KEY = {"api_key": ("KEY", "key to show to the router; better set in the environment")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What a client needs beside the address."""

    tls: TlsConfig = CLEAR
    server_name: str | None = None
    api_key: str | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns what goes with each call."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()


PLAIN = Connection()


def router_client(address: str, how: Connection = PLAIN) -> AsyncClient:
    """Returns a client whose channel behaves as all of ours do. Raises TlsError or ValueError."""
    return AsyncClient(address, channel=dial(address, how), api_key=how.api_key)


def dial(address: str, how: Connection = PLAIN) -> grpc.aio.Channel:
    """Returns a channel to what a flag says. Raises TlsError, or ValueError for no address."""
    if fault := address_fault(address):
        raise ValueError(f"{address!r} is {fault}")
    return open_channel(address, tls=how.tls, server_name=how.server_name)


def add_connection_flags(parser: argparse.ArgumentParser, *, api_key: bool = False) -> None:
    """Adds --tls-ca and its like, and --api-key for a command that calls a router."""
    for name, (metavar, text) in {**_FLAGS, **(_API_KEY if api_key else {})}.items():
        variable = ENV_PREFIX + name.upper()
        parser.add_argument(
            "--" + name.replace("_", "-"),
            metavar=metavar,
            default=os.environ.get(variable),
            help=f"{text} (env {variable})",
        )


def connection(options: dict[str, Any]) -> Connection:
    """Returns what the flags say. Raises ValueError."""
    if (options.get("tls_cert") or options.get("tls_server_name")) and not options.get("tls_ca"):
        raise ValueError("--tls-cert and --tls-server-name need --tls-ca")
    return Connection(
        tls=TlsConfig(
            ca=options.get("tls_ca"), cert=options.get("tls_cert"), key=options.get("tls_key")
        ),
        server_name=options.get("tls_server_name"),
        api_key=options.get("api_key"),
    )

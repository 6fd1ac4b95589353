"""Names the payer of a request's costly work: its tenant, or its client's address.

Costly work (`fair_slots`) is shared fairly between payers. The tenant is known if an API key or a
trusted header names one. Otherwise all clients are one tenant, and only their addresses tell them
apart.
"""

from typing import NamedTuple
from urllib.parse import unquote

from signalbox_rpc.transport.addresses import client_of


class Payer(NamedTuple):
    """Payer of costly work; equal payers share one part."""

    tenant: str = ""
    address: str = ""
    """Client's address, or its IPv6 network; empty if the tenant is known."""


ANYONE = Payer()
"""Payer of work that no client asked for over a network."""


def payer_of(*, tenant: str, is_named: bool, address: str) -> Payer:
    """Returns the tenant as the payer if the request names one, else the address.

    Args:
        is_named: True if a key or a trusted header names the tenant.
    """
    return Payer(tenant=tenant) if is_named else Payer(address=client_of(address))


def grpc_address(peer: str) -> str:
    """Returns the host in the text of `ServicerContext.peer`, such as "ipv4:10.0.0.7:51234"."""
    kind, _, place = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    return place.rpartition(":")[0].strip("[]")

"""Types of settings that are addresses: invalid ones are refused before they are dialled."""

from typing import Annotated

from pydantic import AfterValidator, Field

from signalbox_rpc.http.host_check import allowed_host_fault
from signalbox_rpc.transport.addresses import address_fault, host_fault


def _address(text: str) -> str:
    if fault := address_fault(text):
        raise ValueError(f"it is {fault}")
    return text


def _addresses(text: str) -> str:
    addresses = [one.strip() for one in text.split(",")]
    for one in addresses:
        if fault := address_fault(one):
            raise ValueError(f"{one!r} is {fault}" if len(addresses) > 1 else f"it is {fault}")
    return text


def _host(text: str) -> str:
    if fault := host_fault(text):
        raise ValueError(f"it is {fault}")
    return text


def checked_hosts(text: str | None) -> str | None:
    """Returns names with commas between them. Raises ValueError if one cannot be allowed."""
    for one in (text or "").split(","):
        if one.strip() and (fault := allowed_host_fault(one.strip())):
            raise ValueError(f"{one.strip()!r} is {fault}")
    return text


def _host_or_address(text: str) -> str:
    return text if host_fault(text) is None else _address(text)


Address = Annotated[str, AfterValidator(_address)]
Addresses = Annotated[str, AfterValidator(_addresses)]
"""Addresses with commas between them."""
Host = Annotated[str, AfterValidator(_host)]
Port = Annotated[int, Field(ge=0, le=65535)]
HostOrAddress = Annotated[str, AfterValidator(_host_or_address)]

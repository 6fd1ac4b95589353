"""Settings that are addresses: refused here, by name, and not when they are first dialled."""

from typing import Annotated

from pydantic import AfterValidator

from rpc.addresses import address_fault, host_fault


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


def _host_or_address(text: str) -> str:
    return text if host_fault(text) is None else _address(text)


Address = Annotated[str, AfterValidator(_address)]
Addresses = Annotated[str, AfterValidator(_addresses)]
"""With commas between them."""
Host = Annotated[str, AfterValidator(_host)]
HostOrAddress = Annotated[str, AfterValidator(_host_or_address)]

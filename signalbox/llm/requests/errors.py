"""Errors of the Python API: ValueError for invalid requests, EngineDeadError if the device
fails."""

from collections.abc import Iterator
from contextlib import contextmanager

from signalbox_contract.errors import RpcError


class EngineDeadError(RuntimeError):
    """The worker has failed during a step; its cache is lost and the engine cannot continue."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turns errors of the services' checks into ValueError."""
    try:
        yield
    except RpcError as error:
        raise ValueError(error.message) from None

"""What the Python API raises: ValueError at the door, EngineDeadError when the device is lost."""

from collections.abc import Iterator
from contextlib import contextmanager

from rpc.errors import RpcError


class EngineDeadError(RuntimeError):
    """The worker has failed half-way; its cache is lost and the engine cannot go on."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turns what the services' checks raise into ValueError."""
    try:
        yield
    except RpcError as error:
        raise ValueError(error.message) from None

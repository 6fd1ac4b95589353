"""Interface of a server that keeps the blocks of a shared store."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from signalbox_worker.kv.shared.block_seal import Sealed
from signalbox_worker.kv.store.block_store import StoreUsage

SCAN_S = 120.0
"""Longest time of listing all that a server has: it may never say that it has ended."""


class RefusedError(Exception):
    """The server answers, and does not do what was asked: it is full, or only read."""


class BlockServer(Protocol):
    """Sealed blocks by name, in the names of one model; safe from several threads.

    Every call ends within a bound, and raises OSError if the server is down, slow or not to be
    understood. What a server returns may be anything.
    """

    @property
    def num_answers(self) -> int:
        """Answers of the server so far, errors aside; a call that needs none asks nothing."""
        ...

    def count_leading(self, names: Sequence[bytes]) -> int:
        """Returns how many of the first names are there, and counts them as used."""
        ...

    def read(self, name: bytes) -> Sealed | None:
        """Returns a block; None if there is none of this name."""
        ...

    def write(self, name: bytes, sealed: Sealed) -> None:
        """Keeps a block unless it is there. Raises RefusedError."""
        ...

    def remove(self, name: bytes) -> None:
        """Removes a block, and others of its object."""
        ...

    def clear(self, tenant: bytes | None) -> int:
        """Removes the blocks whose header names a tenant, or all of the model.

        Returns the number of keys or objects that were removed.
        """
        ...

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yields the model and the bytes of each key or object."""
        ...

    def usage(self) -> StoreUsage:
        """Asks what the server holds, of all models; zeros if that cannot be asked."""
        ...

    def close(self) -> None: ...

"""A `BlockStore` that opens when it is known what its blocks belong to.

That takes a digest of the weights, beside the steps. Until then, and if it cannot be opened,
nothing is found or kept; a device that fails is tried again.
"""

import logging
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.store.block_store import BlockStore, StoreError, StoreUsage

logger = logging.getLogger(__name__)

RETRY_S = 60.0
"""Seconds between two attempts to open a store whose device fails."""
MAINTENANCE_S = 10.0
"""Seconds between two calls of `maintain`."""
CLOSE_S = 2.0
"""Seconds that the end of a worker waits for the end of the store."""

Identify = Callable[[MutableMapping[str, str], Callable[[], bool]], bytes]
"""Called with the digests of files that are known, to which it adds, and a function that says
whether it is called off; returns the identity of the blocks, or raises."""


class OpenedStore(BlockStore, Protocol):
    """A store that has work of its own from time to time."""

    def maintain(self) -> None:
        """Raises StoreError, which the store has counted and logged."""
        ...


S = TypeVar("S", bound=OpenedStore)


class LateStore(Generic[S]):
    """A thread of its own opens, maintains and closes the store; subclasses say how.

    Args:
        name: of the tier, for the log.
        capacity_bytes: what `usage` says before the store has opened.
    """

    def __init__(self, *, block_bytes: int, name: str, capacity_bytes: int = 0) -> None:
        self._block_bytes = block_bytes
        self._name = name
        self._usage = StoreUsage(0, 0, capacity_bytes, is_open=False)
        self._identify: Identify | None = None
        """Known once the store is started."""
        self._store: S | None = None
        self._clears: list[tuple[bytes | None, ClearMark | None]] | None = []
        """Clears to be made when the store opens; None when it has."""
        self._opening = threading.Lock()
        self._closing = threading.Event()
        self.opened = threading.Event()
        """Set when the store has opened, or could not be."""
        self._thread = threading.Thread(target=self._run, name=f"kv-{name}", daemon=True)

    def start(self, identify: Identify, *, wait_s: float = 0.0) -> None:
        """Begins to open the store, once; waits for that for so many seconds at most."""
        self._identify = identify
        logger.info(
            "%s tier of KV blocks: opening; it finds and keeps nothing until all weights are read",
            self._name,
        )
        self._thread.start()
        self.opened.wait(wait_s)

    def open(self) -> S:
        """Opens the store; `identity` may raise if that is called off.

        Raises StoreError or OSError if it may be opened later, anything else if it cannot be.
        """
        raise NotImplementedError

    def closed(self) -> None:
        """Gives up what the subclass holds, after the store."""

    def identity(self, digests: MutableMapping[str, str]) -> bytes:
        """Returns the identity of the blocks, and adds to the digests of files that are known."""
        assert self._identify is not None, "the store is started"
        return self._identify(digests, self._closing.is_set)

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def find(self, keys: Sequence[bytes]) -> int:
        return 0 if (store := self._store) is None else store.find(keys)

    def read(self, key: bytes, into: memoryview) -> bool:
        return (store := self._store) is not None and store.read(key, into)

    def write(self, key: bytes, data: memoryview, tenant: bytes) -> bool:
        return (store := self._store) is not None and store.write(key, data, tenant)

    def remove(self, key: bytes) -> None:
        if (store := self._store) is not None:
            store.remove(key)

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        with self._opening:
            if self._clears is not None:
                if (tenant, mark) not in self._clears:
                    self._clears.append((tenant, mark))  # of an earlier worker's blocks
                return
        if (store := self._store) is not None:
            store.clear(tenant, mark)

    def usage(self) -> StoreUsage:
        return self._usage if (store := self._store) is None else store.usage()

    def close(self) -> None:
        """Has the store closed; waits for a moment at most."""
        self._closing.set()
        if self._identify is None:  # the worker ends before it is profiled
            self.closed()
        else:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            if (store := self._opened()) is not None:
                logger.info(
                    "%s tier of KV blocks: open after %.1f s", self._name, time.monotonic() - begun
                )
                self.opened.set()
                self._maintain(store)
        except Exception as error:
            if not self._closing.is_set():
                logger.error("the %s tier of KV blocks stays off: %s", self._name, error)
        self.opened.set()
        self.closed()

    def _opened(self) -> S | None:
        """Opens the store as soon as its device can be used; returns None if that is called off."""
        said = ""
        while True:
            try:
                return self._open()
            except (StoreError, OSError) as error:
                if said != (said := str(error)):
                    logger.error(
                        "the %s tier of KV blocks is off until it can be opened, which is tried"
                        " each %.0f s: %s",
                        self._name,
                        RETRY_S,
                        error,
                    )
            self.opened.set()
            if self._closing.wait(RETRY_S):
                return None

    def _open(self) -> S:
        store = self.open()
        try:
            with self._opening:
                for tenant, mark in self._clears or ():
                    self._clear(store, tenant, mark)
                self._clears = None
                self._store = store
        except BaseException:
            store.close()
            raise
        return store

    def _clear(self, store: S, tenant: bytes | None, mark: ClearMark | None) -> None:
        """Clears before anything is found."""
        store.clear(tenant, mark)

    def _maintain(self, store: S) -> None:
        while not self._closing.wait(MAINTENANCE_S):
            with suppress(StoreError):
                store.maintain()
        self._store = None
        store.close()

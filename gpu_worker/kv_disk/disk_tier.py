"""The disk tier of a worker: a `BlockStore` that opens when it is known what its blocks belong to.

That takes a digest of the weights, which the first worker with a checkpoint reads whole, beside its
steps. Until then, and if opening fails, the tier finds and keeps nothing.
"""

import json
import logging
import threading
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress

from gpu_worker.config import DiskConfig
from gpu_worker.kv_disk.disk_store import DiskStore
from gpu_worker.kv_disk.store_folder import StoreFolder
from gpu_worker.kv_disk.write_limit import WriteLimit
from gpu_worker.kv_store.block_store import StoreError, StoreUsage

logger = logging.getLogger(__name__)

MAINTENANCE_S = 10.0
"""Seconds between two syncs: what a loss of power costs at most."""
CLOSE_S = 2.0
"""Seconds that the end of a worker waits for the last sync."""
_DIGESTS = "digests.json"
_MAX_DIGESTS = 1000

Identify = Callable[[MutableMapping[str, str], Callable[[], bool]], bytes]
"""Called with the digests of files that are known, to which it adds, and a function that says
whether it is called off; returns the identity of the blocks, or raises."""


class DiskTier:
    """Implements `BlockStore`; a thread of its own opens, syncs and closes the store."""

    def __init__(
        self, config: DiskConfig, *, block_bytes: int, model: str, identify: Identify
    ) -> None:
        """Raises FolderError if the folder cannot be used, OSError if the disk fails."""
        assert config.kv_disk is not None
        self._config = config
        self._block_bytes = block_bytes
        self._model = model
        self._identify = identify
        self._folder = StoreFolder(config.kv_disk)
        self.read_bytes_per_s = self._folder.measure_read()
        self._store: DiskStore | None = None
        self._clears: list[bytes | None] | None = []
        """Tenants to be cleared when the store opens; None when it has."""
        self._opening = threading.Lock()
        self._closing = threading.Event()
        self.opened = threading.Event()
        """Set when the store has opened, or cannot be."""
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._thread.start()

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    def find(self, keys: Sequence[bytes]) -> int:
        return 0 if (store := self._store) is None else store.find(keys)

    def read(self, key: bytes, into: memoryview) -> bool:
        return (store := self._store) is not None and store.read(key, into)

    def write(self, key: bytes, data: memoryview, tenant: bytes) -> bool:
        return (store := self._store) is not None and store.write(key, data, tenant)

    def clear(self, tenant: bytes | None) -> None:
        with self._opening:
            if self._clears is not None:
                self._clears.append(tenant)  # blocks of an earlier worker, which nothing finds yet
                return
        if (store := self._store) is not None:
            store.clear(tenant)

    def usage(self) -> StoreUsage:
        if (store := self._store) is None:
            return StoreUsage(0, 0, self._config.kv_disk_bytes)
        return store.usage()

    def close(self) -> None:
        """Has the store synced and closed; waits for a moment at most."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            store = self._open()
            with self._opening:
                for tenant in self._clears or ():
                    store.clear(tenant)
                self._clears = None
                self._store = store
        except Exception as error:
            if not self._closing.is_set():
                logger.error("the disk tier of KV blocks stays off: %s", error)
        self.opened.set()
        if self._store is not None:
            self._maintain(self._store)
        self._folder.close()

    def _maintain(self, store: DiskStore) -> None:
        while not self._closing.wait(MAINTENANCE_S):
            with suppress(StoreError):  # which the store has counted and logged
                store.maintain()
        self._store = None
        store.close()

    def _open(self) -> DiskStore:
        store = DiskStore(
            self._folder,
            identity=self._read_identity(),
            block_bytes=self._block_bytes,
            quota_bytes=self._config.kv_disk_bytes,
            model=self._model,
            limit=WriteLimit(
                bytes_per_s=self._config.disk_write_bytes_per_s,
                bytes_per_day=self._config.disk_write_bytes_per_day,
            ),
        )
        usage = store.usage()
        logger.info(
            "disk tier of KV blocks: %d blocks of this model, %d MiB, in %s",
            usage.num_blocks,
            usage.used_bytes >> 20,
            self._folder.path,
        )
        return store

    def _read_identity(self) -> bytes:
        known = _parsed(self._folder.read_text(_DIGESTS))
        digests = dict(known)
        identity = self._identify(digests, self._closing.is_set)
        if digests != known:
            with self._folder.locked():
                merged = _parsed(self._folder.read_text(_DIGESTS)) | digests
                newest = dict(list(merged.items())[-_MAX_DIGESTS:])
                self._folder.write_text(_DIGESTS, json.dumps(newest))
        return identity


def _parsed(text: str) -> dict[str, str]:
    """Returns kept digests; none if the file is damaged, so that they are made again."""
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return {k: v for k, v in found.items() if isinstance(v, str) and _is_sha256(v)}
    return {}


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")

"""The disk tier of a worker: opens files of its blocks, and syncs them from time to time."""

import json
import logging
from contextlib import suppress

from signalbox_contract.model import StoreCapacity
from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.disk.clear_marks import KnownClears
from signalbox_worker.kv.disk.disk_space import WriteLimit
from signalbox_worker.kv.disk.disk_store import DiskStore
from signalbox_worker.kv.disk.store_folder import FolderError, StoreFolder
from signalbox_worker.kv.store.block_store import StoreError, StoreUsage
from signalbox_worker.kv.store.late_store import LateStore
from signalbox_worker.kv.store_config import STORE_WRITE_BYTES_PER_S, DiskConfig

logger = logging.getLogger(__name__)

_DIGESTS = "digests.json"
_CLEARS = "clears.json"
_MAX_DIGESTS = 1000


class DiskTier(LateStore[DiskStore]):
    """Satisfies `BlockStore`; digests of weights are kept in the folder."""

    def __init__(
        self,
        config: DiskConfig,
        *,
        block_bytes: int,
        model: str,
        num_ranks: int = 1,
    ) -> None:
        """Raises FolderError if the folder cannot be used, OSError if the disk fails.

        Args:
            num_ranks: processes of the worker, which divide its writes.
        """
        assert config.kv_disk is not None
        super().__init__(block_bytes=block_bytes, name="disk", capacity_bytes=config.kv_disk_bytes)
        self._config = config
        self._model = model
        self._identity: bytes | None = None
        self._folder = StoreFolder(config.kv_disk)
        self._known_clears = KnownClears(self._folder.read_text(_CLEARS))
        self.capacity = StoreCapacity(
            kind="disk",
            read_bytes_per_s=self._folder.measure_read(),
            max_write_bytes_per_s=STORE_WRITE_BYTES_PER_S // num_ranks,
            clears=self._known_clears.marks,
        )
        self._write_bytes_per_day = config.disk_write_bytes_per_day // num_ranks

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        """Raises StoreError before the tier is open, too: it is cleared when it opens, but if it
        does not, what an earlier worker has left is there for a later one."""
        is_open = self.is_open
        fault = "" if mark is None else self._keep_mark(mark)
        super().clear(tenant, mark)
        if not is_open:
            raise StoreError("the disk tier is not open; it is cleared when it opens")
        if fault:
            raise StoreError(fault)

    def usage(self) -> StoreUsage:
        return super().usage()._replace(clears=self._known_clears.marks)

    def _keep_mark(self, mark: ClearMark) -> str:
        """Keeps in the folder what schedulers to come are told; returns why it cannot, if so."""
        try:
            with self._folder.locked():
                known = KnownClears(self._folder.read_text(_CLEARS))
                if not known.has(mark):
                    known.add(mark)
                    self._folder.write_text(_CLEARS, known.text)
        except OSError as error:
            return f"keeping the mark of a clear: {error}"
        self._known_clears = known
        return ""

    def closed(self) -> None:
        self._folder.close()

    def open(self) -> DiskStore:
        try:
            return self._opened_store()
        except FolderError as error:  # it names what to delete
            raise StoreError(str(error)) from None

    def _opened_store(self) -> DiskStore:
        if self._identity is None:
            self._identity = self._made_identity()
        store = DiskStore(
            self._folder,
            identity=self._identity,
            block_bytes=self._block_bytes,
            quota_bytes=self._config.kv_disk_bytes,
            model=self._model,
            limit=WriteLimit(bytes_per_day=self._write_bytes_per_day),
        )
        usage = store.usage()
        logger.info(
            "disk tier of KV blocks: %d blocks of this model, %d MiB, in %s",
            usage.num_blocks,
            usage.used_bytes >> 20,
            self._folder.path,
        )
        return store

    def _made_identity(self) -> bytes:
        known = _parsed(self._folder.read_text(_DIGESTS))
        digests = dict(known)
        identity = self.identity(digests)
        if digests != known:
            with suppress(OSError):  # a disk that is full: the weights are read again next time
                self._keep(digests)
        return identity

    def _keep(self, digests: dict[str, str]) -> None:
        with self._folder.locked():
            merged = _parsed(self._folder.read_text(_DIGESTS)) | digests
            newest = dict(list(merged.items())[-_MAX_DIGESTS:])
            self._folder.write_text(_DIGESTS, json.dumps(newest))


def _parsed(text: str) -> dict[str, str]:
    """Returns kept digests; none if the file is damaged, so that they are made again."""
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return {k: v for k, v in found.items() if isinstance(v, str) and _is_sha256(v)}
    return {}


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")

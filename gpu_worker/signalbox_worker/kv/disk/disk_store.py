"""Blocks on a disk: satisfies `BlockStore`.

A block's bytes are written before its row in the index. Neither is synced then: the row has a
checksum of the bytes, the key and the identity of the model, so that bytes that were lost, torn,
changed, or put elsewhere are not returned, whatever order the device wrote them in. Each
`MAINTENANCE_S` both are synced. Only `clear` waits for the device.

An error is a miss for the scheduler; the log has the first of each kind. A damaged index is
replaced by an empty one. One that cannot be written to, as on a disk that is full, is read alone
until it can be.
"""

import errno
import hashlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.disk.disk_faults import DiskFaults
from signalbox_worker.kv.disk.disk_index import DiskIndex, StoredBlock
from signalbox_worker.kv.disk.disk_space import PIECE_BYTES, DiskSpace, WriteLimit
from signalbox_worker.kv.disk.index_schema import LOG_BYTES, IndexUnusable
from signalbox_worker.kv.disk.slot_file import SYSTEM, FileCalls, SlotFile
from signalbox_worker.kv.disk.store_folder import OwnedFiles, StoreFolder
from signalbox_worker.kv.store.block_store import StoreError, StoreUsage

logger = logging.getLogger(__name__)


def open_index(
    folder: StoreFolder, files: OwnedFiles, slots: SlotFile, *, identity: bytes
) -> DiskIndex:
    """Opens an index for reading alone if it cannot be written to, as on a disk that is full, and
    an empty one in the place of one that is of no use.

    The lock on the folder must be held. Raises OSError and sqlite3.Error.
    """
    fault: Exception = OSError(errno.ENOSPC, "there is no space for its log")
    if folder.has_space(LOG_BYTES):
        try:
            return _open(files, slots, identity)
        except (IndexUnusable, sqlite3.DatabaseError, ValueError) as error:
            fault = error
    with suppress(IndexUnusable, sqlite3.DatabaseError, ValueError):
        return _open(files, slots, identity, is_read_only=True)
    index = open_empty_index(folder, files, slots, identity=identity)
    logger.warning("the index of %s is empty from now on: %s", files.name, fault)
    return index


def open_empty_index(
    folder: StoreFolder, files: OwnedFiles, slots: SlotFile, *, identity: bytes
) -> DiskIndex:
    """Replaces an index of which no connection is open, and gives the space of all slots back.

    The lock on the folder must be held. Raises OSError and sqlite3.Error.
    """
    folder.discard_index(files.name)
    folder.make_index(files.name)
    slots.shorten(0)
    slots.sync()
    return _open(files, slots, identity)


def _open(
    files: OwnedFiles, slots: SlotFile, identity: bytes, *, is_read_only: bool = False
) -> DiskIndex:
    index = DiskIndex(
        files.index_path,
        identity=identity,
        block_bytes=slots.block_bytes,
        is_read_only=is_read_only,
    )
    try:
        index.check(num_slots=slots.num_slots)
        if slots.num_slots > index.num_slots and not is_read_only:
            # Of an index that was replaced, or was to get more. Cleared blocks may be there.
            slots.shorten(index.num_slots)
            slots.sync()
    except BaseException:
        index.close()
        raise
    return index


CHECKSUM_BYTES = 16
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a write that say nothing of its slot: a file system that copies on write takes space
for it, though the slot was allocated."""
YIELD_S = 0.001
"""Pause between two parts of a long task: a lock goes to the thread that asks while it is free."""


class DiskStore:
    """One worker's pair of files in a folder.

    Args:
        identity: SHA-256 of all that the bytes of a block depend on beside its key.
        model: name of the model, for listings of the folder.
        quota_bytes: of all files in the folder.
    """

    def __init__(
        self,
        folder: StoreFolder,
        *,
        identity: bytes,
        block_bytes: int,
        quota_bytes: int,
        limit: WriteLimit,
        piece_bytes: int = PIECE_BYTES,
        model: str = "",
        calls: FileCalls = SYSTEM,
    ) -> None:
        """Takes files of this identity that no process has, or makes some. Raises StoreError."""
        self._folder, self._identity, self._model = folder, identity, model
        self._block_bytes = block_bytes
        self._limit = limit
        self._lock = threading.RLock()  # of what changes blocks and space
        self._faults = DiskFaults(folder)
        self._num_evicted = 0
        with _opening(), folder.locked():
            files = folder.take(identity.hex()[:32])
            self._files = files
            self._slots = SlotFile(files.fd, block_bytes=block_bytes, calls=calls)
            try:
                self._index = open_index(folder, files, self._slots, identity=identity)
            except BaseException:
                self._slots.close()
                raise
        self._space = DiskSpace(
            folder, files.name, slots=self._slots, quota_bytes=quota_bytes, piece_bytes=piece_bytes
        )
        try:
            with _opening(), self._lock:
                limit.continue_day(self._index.written_on(limit.day))
                self._use_index()
        except BaseException:
            self._close_files()
            raise

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    @property
    def is_open(self) -> bool:
        return True

    def find(self, keys: Sequence[bytes]) -> int:
        with self._faults.failing("looking up blocks"):
            return self._index.num_leading(keys)

    def read(self, key: bytes, into: memoryview) -> bool:
        with self._faults.failing("reading a block"):
            block = self._index.find(key)
            if block is None:
                return False
            try:
                is_whole = self._slots.read(block.slot, into)
            except OSError:
                self._forget(key, block)
                raise
            if is_whole and self._checksum(key, into) == block.checksum:
                return True
            if self._forget(key, block):  # else it was evicted, and its slot written, meanwhile
                self._faults.count(
                    "damaged", "a block is not what was written; its tokens are computed"
                )
            return False

    def write(self, key: bytes, data: memoryview, tenant: bytes) -> bool:
        with self._faults.failing("writing a block"), self._lock:
            if self._index.is_read_only:
                return False
            if self._index.find(key) is not None:
                return True
            if not self._limit.take(self._block_bytes):
                return False
            slot = self._slot_for(hashed_tenant(tenant))
            if slot is None:
                return False
            try:
                self._slots.write(slot, data)
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    with suppress(sqlite3.Error):
                        self._index.lose_slot(slot)
                raise
            self._index.insert(
                slot, key=key, checksum=self._checksum(key, data), tenant=hashed_tenant(tenant)
            )
            self._num_blocks += 1
            return True

    def remove(self, key: bytes) -> None:
        with self._faults.failing("removing a block"):
            if (block := self._index.find(key)) is not None:
                self._forget(key, block)

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        whose = None if tenant is None else hashed_tenant(tenant)
        with self._faults.failing("clearing"), self._lock:
            self._clear(whose, mark)
            self._space.give_back(self._index)
            self._count()

    def _clear(self, tenant: bytes | None, mark: ClearMark | None) -> None:
        try:
            if mark is not None and self._index.has_made(tenant, mark):
                return
            if not self._index.is_read_only:
                self._index.clear(tenant, mark)
                return
        except (OSError, sqlite3.Error, ValueError) as error:
            said = f"a clear failed, so that all blocks are forgotten: {error}"
            self._faults.log_once("clearing", said)
        # All can be forgotten where a part cannot. If not even that can be done, nothing is found
        # until it is: the mark of a later clear says that this one was made, too.
        self._replace_index()
        self._index.clear(tenant, mark)

    def maintain(self) -> None:
        """Syncs what was written, and gives space back that others have a right to. Raises
        StoreError."""
        with self._faults.failing("syncing"):
            if self._faults.is_damaged:
                self._replace_index()
            if self._index.is_read_only and not self._reopen_index():
                return
            self._slots.sync()
            try:
                with self._lock:
                    self._index.write_touches()
                    self._index.set_written(self._limit.day, self._limit.written_today)
            finally:  # it makes room in the log, which a disk that is full does not let grow
                self._index.checkpoint()
            while self._give_way():
                time.sleep(YIELD_S)

    def _give_way(self) -> bool:
        """Gives some space back; returns whether there is more, before which writes have a turn."""
        with self._lock:
            num_evicted, has_more = self._space.give_way(self._index)
            self._num_evicted += num_evicted
            self._count()
        return has_more

    def usage(self) -> StoreUsage:
        return StoreUsage(
            num_blocks=self._num_blocks,
            used_bytes=self._num_blocks * self._slots.slot_bytes,
            capacity_bytes=self._space.quota_bytes,
            num_evicted=self._num_evicted,
            num_failed=self._faults.num_failed,
        )

    def close(self) -> None:
        """Syncs, and lets another process take the files."""
        with suppress(StoreError):
            self.maintain()
        self._close_files()

    def _close_files(self) -> None:
        with self._lock:  # no write is under way, whose descriptor might be another file's then
            with suppress(sqlite3.Error):
                self._index.close()
            self._slots.close()

    def _slot_for(self, tenant: bytes) -> int | None:
        """Returns a free slot: one that is there, of more space, or that of an evicted block."""
        slot = self._index.free_slot()
        if slot is None and self._space.grow(self._index):
            slot = self._index.free_slot()
        if slot is None and (slot := self._index.evict(tenant)) is not None:
            self._num_evicted += 1
            self._num_blocks -= 1
        return slot

    def _forget(self, key: bytes, block: StoredBlock) -> bool:
        with self._lock, suppress(sqlite3.Error):
            if self._index.remove(key, block.slot):
                self._num_blocks -= 1
                return True
        return False

    def _reopen_index(self) -> bool:
        """Opens an index to write to that could only be read; returns whether that is done."""
        if self._folder.has_space(LOG_BYTES):
            self._exchange_index(open_index)
        return not self._index.is_read_only

    def _replace_index(self) -> None:
        self._exchange_index(open_empty_index)

    def _exchange_index(self, opened: Callable[..., DiskIndex]) -> None:
        with self._lock:
            self._faults.is_damaged = True  # unless all goes well
            with suppress(sqlite3.Error):
                self._index.close()
            with self._folder.locked():
                self._index = opened(
                    self._folder, self._files, self._slots, identity=self._identity
                )
            self._faults.is_damaged = False
            self._use_index()

    def _use_index(self) -> None:
        if self._index.is_read_only:
            self._faults.log_once(
                "read-only",
                f"{self._folder.path} cannot be written to, as its disk is full; what it has is"
                " found, and nothing is kept, until there is space",
            )
        else:
            with suppress(sqlite3.Error):  # the next one that can be written to notes it
                self._index.set_model(self._model)
        self._space.give_back(self._index)  # of a clear that did not end
        self._count()

    def _count(self) -> None:
        self._num_blocks = self._index.num_blocks()

    def _checksum(self, key: bytes, data: memoryview) -> bytes:
        # SHA-256 is faster than BLAKE2 where the processor has instructions for it: 1.5 GB/s on
        # Zen 3. A CRC is faster still, and misses one error in 2^32.
        digest = hashlib.sha256(self._identity + key)
        digest.update(data[: self._block_bytes])
        return digest.digest()[:CHECKSUM_BYTES]


@contextmanager
def _opening() -> Iterator[None]:
    """Raises errors of the device and the index as StoreError."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"opening: {error}") from error


def hashed_tenant(tenant: bytes) -> bytes:
    """Names a tenant in the index, which may be read where its name must not be."""
    return hashlib.blake2b(tenant, digest_size=16, person=b"tenant").digest()

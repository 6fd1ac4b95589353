"""Opens the index of a pair of files: as it is, for reading alone, or empty."""

import errno
import logging
import sqlite3
from contextlib import suppress

from signalbox_worker.kv_disk.disk_index import DiskIndex
from signalbox_worker.kv_disk.index_schema import LOG_BYTES, IndexUnusable
from signalbox_worker.kv_disk.slot_file import SlotFile
from signalbox_worker.kv_disk.store_folder import OwnedFiles, StoreFolder

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

"""Lists the KV blocks in a folder by model, and removes those that no worker has open."""

import contextlib
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from signalbox_worker.kv.disk.disk_index import DiskIndex
from signalbox_worker.kv.disk.disk_space import DiskSpace
from signalbox_worker.kv.disk.disk_store import hashed_tenant
from signalbox_worker.kv.disk.index_schema import (
    IndexUnusable,
    connect_beside,
    connect_read_only,
    log_head,
)
from signalbox_worker.kv.disk.slot_file import SlotFile
from signalbox_worker.kv.disk.store_folder import OwnedFiles, StoreFolder

_NUM_READS = 10
"""Attempts to read an index while its log does not begin anew: a worker writes it that often only
under load, and a read takes a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A pair of files."""

    name: str
    model: str
    """Name under which a worker served the model last; empty if the index cannot be read."""
    num_blocks: int
    num_tenants: int
    num_bytes: int
    """Space on the device, free slots and the index included."""
    used_at: float
    """Seconds since the epoch, when a block was last written."""
    is_in_use: bool
    """True while a worker has the files."""


def stored_models(path: Path) -> list[StoredModel]:
    """Returns the pairs of files of a folder, the one that was used longest ago first.

    Raises FolderError.
    """
    folder = StoreFolder(path, makes=False)
    with contextlib.closing(folder), folder.locked():
        return [
            StoredModel(
                name=one.name,
                num_bytes=one.num_bytes,
                used_at=one.used_at,
                is_in_use=one.is_owned,
                **_counts(folder.path / f"{one.name}.index", is_in_use=one.is_owned),
            )
            for one in folder.files()
        ]


def clear(path: Path, tenant: str | None) -> tuple[int, int]:
    """Removes the blocks of a tenant, or all files, where no worker has them.

    Returns how many pairs of files were cleared, and how many are in use. Raises FolderError.
    """
    folder = StoreFolder(path, makes=False)
    num_cleared = num_in_use = 0
    with contextlib.closing(folder), folder.locked():
        for one in folder.files():
            is_ours = not one.is_owned and (
                folder.delete(one.name) if tenant is None else _clear(folder, one.name, tenant)
            )
            num_cleared += is_ours
            num_in_use += not is_ours
    return num_cleared, num_in_use


class _Counts(TypedDict):
    model: str
    num_blocks: int
    num_tenants: int


def _counts(index: Path, *, is_in_use: bool) -> _Counts:
    """Reads an index that a worker may be writing to."""
    for _ in range(_NUM_READS):
        with contextlib.suppress(sqlite3.Error, ValueError, OSError):
            head = log_head(index)
            counts = _read_counts(connect_beside(str(index)))
            if log_head(index) == head:
                return counts
    if not is_in_use:
        with contextlib.suppress(sqlite3.Error, ValueError):  # of a disk that is full
            return _read_counts(connect_read_only(str(index)))
    return {"model": "", "num_blocks": 0, "num_tenants": 0}


def _read_counts(opened: sqlite3.Connection) -> _Counts:
    with contextlib.closing(opened) as connection:
        state = dict(connection.execute("SELECT name, value FROM state"))
        counts = [n for (n,) in connection.execute("SELECT num_blocks FROM tenants")]
    used = [count for count in counts if count]
    return {
        "model": str(state.get("model", "")),
        "num_blocks": sum(used),
        "num_tenants": len(used),
    }


def _clear(folder: StoreFolder, name: str, tenant: str) -> bool:
    files = folder.own(name)
    if files is None:
        return False
    try:
        _clear_owned(folder, files, tenant)
    except (sqlite3.DatabaseError, IndexUnusable, LookupError, ValueError, TypeError):
        # Nothing can be found by it.
        os.close(files.fd)
        return folder.delete(name)
    return True


def _clear_owned(folder: StoreFolder, files: OwnedFiles, tenant: str) -> None:
    with contextlib.closing(connect_beside(str(files.index_path))) as connection:
        state = dict(connection.execute("SELECT name, value FROM state"))
    identity, block_bytes = state["identity"], state["block_bytes"]
    with contextlib.closing(
        DiskIndex(files.index_path, identity=identity, block_bytes=block_bytes)
    ) as index:
        slots = SlotFile(files.fd, block_bytes=block_bytes)
        index.clear(hashed_tenant(tenant.encode()))
        DiskSpace(folder, files.name, slots=slots, quota_bytes=0).give_back(index)
    slots.close()

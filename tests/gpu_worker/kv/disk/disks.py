"""Disk stores with small blocks, and calls to the system that fail."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from signalbox_worker.kv.disk.disk_space import WriteLimit
from signalbox_worker.kv.disk.disk_store import DiskStore
from signalbox_worker.kv.disk.slot_file import SYSTEM, FileCalls
from signalbox_worker.kv.disk.store_folder import StoreFolder
from tests.gpu_worker.kv.store.stores import content_of, key_of

BLOCK_BYTES = 4096
IDENTITY = b"\x07" * 32
SPACE = 1 << 30
SECTOR = 512


def make_store(
    path: Path,
    *,
    identity: bytes = IDENTITY,
    block_bytes: int = BLOCK_BYTES,
    quota_bytes: int = SPACE,
    num_blocks: int | None = None,
    piece_blocks: int = 4,
    limit: WriteLimit | None = None,
    calls: FileCalls = SYSTEM,
) -> DiskStore:
    """Opens a store; `num_blocks` is what the device has space for."""
    if num_blocks is not None:
        calls = FullAt(num_blocks * BLOCK_BYTES)
    path.mkdir(exist_ok=True)
    return DiskStore(
        StoreFolder(path / "kv"),
        identity=identity,
        block_bytes=block_bytes,
        quota_bytes=quota_bytes,
        limit=limit or WriteLimit(bytes_per_day=1e18),
        piece_bytes=piece_blocks * block_bytes,
        calls=calls,
    )


def data_of(number: int, block_bytes: int = BLOCK_BYTES) -> bytes:
    return content_of(number, block_bytes=4096) * (block_bytes // 4096)


def write(store: DiskStore, *numbers: int, tenant: bytes = b"t") -> list[bool]:
    size = store.block_bytes
    return [store.write(key_of(n), memoryview(data_of(n, size)), tenant) for n in numbers]


def read(store: DiskStore, number: int) -> bytes | None:
    into = bytearray(store.block_bytes)
    return bytes(into) if store.read(key_of(number), memoryview(into)) else None


def held(store: DiskStore, numbers: range) -> set[int]:
    """Returns the blocks that are there; each of them has the right bytes."""
    found = {number: read(store, number) for number in numbers}
    wrong = [n for n, data in found.items() if data not in (None, data_of(n, store.block_bytes))]
    assert not wrong
    return {number for number, data in found.items() if data is not None}


def files_of(path: Path, suffix: str) -> list[Path]:
    return sorted((path / "kv").glob(f"*{suffix}"))


class FullAt(FileCalls):
    """Calls on a device that has so many bytes."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes

    def allocate(self, fd: int, offset: int, num_bytes: int) -> None:
        if offset + num_bytes > self._num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(fd, offset, num_bytes)


class FailingCalls(FileCalls):
    """Calls of one name fail by `error`, or do what `instead` does, while `fails` is true."""

    def __init__(
        self,
        name: str,
        error: OSError | None = None,
        instead: Callable[..., int] | None = None,
    ) -> None:
        self._name, self._error, self._instead = name, error, instead
        self.fails = True
        self.num_failed = 0

    def _fail(self, name: str, *args: object) -> int | None:
        if name != self._name or not self.fails:
            return None
        self.num_failed += 1
        if self._error is not None:
            raise self._error
        assert self._instead is not None
        return self._instead(*args)

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        done = self._fail("read", fd, into, offset)
        return super().read(fd, into, offset) if done is None else done

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        done = self._fail("write", fd, data, offset)
        return super().write(fd, data, offset) if done is None else done

    def allocate(self, fd: int, offset: int, num_bytes: int) -> None:
        self._fail("allocate", fd, offset, num_bytes)
        super().allocate(fd, offset, num_bytes)

    def punch(self, fd: int, offset: int, num_bytes: int) -> None:
        self._fail("punch", fd, offset, num_bytes)
        super().punch(fd, offset, num_bytes)

    def truncate(self, fd: int, num_bytes: int) -> None:
        self._fail("truncate", fd, num_bytes)
        super().truncate(fd, num_bytes)

    def sync(self, fd: int) -> None:
        self._fail("sync", fd)
        super().sync(fd)


class UnsyncedCalls(FileCalls):
    """Remembers what was written and not synced, to lose it as a device without power does."""

    def __init__(self) -> None:
        self._unsynced: list[tuple[int, bytes, bytes]] = []
        """Offset, and bytes before and after a write."""

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        before = os.pread(fd, len(data), offset).ljust(len(data), b"\0")
        count = super().write(fd, data, offset)
        self._unsynced.append((offset, before[:count], bytes(data[:count])))
        return count

    def punch(self, fd: int, offset: int, num_bytes: int) -> None:
        before = os.pread(fd, num_bytes, offset).ljust(num_bytes, b"\0")
        super().punch(fd, offset, num_bytes)
        self._unsynced.append((offset, before, bytes(num_bytes)))

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._unsynced.clear()

    def lose(self, path: Path, rng: random.Random) -> None:
        """Leaves each sector of the file as it was before or after each write since the last sync.

        Writes reach the device in any order, whole, in part or not at all.
        """
        content = bytearray(path.read_bytes())
        for offset, before, _ in reversed(self._unsynced):
            content[offset : offset + len(before)] = before
        writes = list(self._unsynced)
        rng.shuffle(writes)
        for offset, _, after in writes:
            fate = rng.choice(("lost", "torn", "written"))
            for at in range(0, len(after), SECTOR):
                if fate == "written" or (fate == "torn" and rng.random() < 0.5):
                    content[offset + at : offset + at + SECTOR] = after[at : at + SECTOR]
        path.write_bytes(content)

"""The folder of the disk tier, which several workers, their processes and models may share.

A worker owns a pair of files, NAME.blocks and NAME.index, as long as it holds the lock on the
first; the system ends the lock with the process. A worker takes, makes or deletes a pair, or takes
space, under the lock on the file `lock`, which it holds for moments. So a worker that starts takes
a pair of its model that no worker has, or makes another one, and waits for none.

Prompts can be computed from what is in the files: the folder is 0700, files are 0600, other users'
files and links are refused.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from signalbox_worker.kv.disk.index_schema import LOG_BYTES
from signalbox_worker.kv.store.folder_owner import OWN_FOLDER, is_private, ownership_fault

_MOUNTS = Path("/proc/self/mountinfo")
_OF_A_NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre"),
        *("ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs"),
    )
)


class FileSystem(NamedTuple):
    name: str
    """Type of the file system, such as "ext4"."""
    is_network: bool


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> FileSystem:
    """Returns the file system of an existing path. Raises OSError if the system does not say.

    Those of user space (fuse.sshfs, fuse.s3fs) count as a network's; most of them are.
    """
    real, best, name = os.path.realpath(path), -1, ""
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        point = _unescaped(fields.split()[4])
        # Of mounts on one point, the last one counts.
        if _is_below(real, point) and len(point) >= best:
            best, name = len(point), rest.split()[0]
    return FileSystem(name, name in _OF_A_NETWORK or name.startswith("fuse."))


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


_NAME = re.compile(r"(?P<identity>[0-9a-f]{32})-(?P<number>[0-9]+)\.blocks")
_SUFFIXES = (".blocks", ".index", ".index-wal", ".index-shm", ".index-journal")
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_TEXT_CHARS = 1 << 20


class FolderError(ValueError):
    """The folder cannot be used; the message names the remedy."""


class OwnedFiles(NamedTuple):
    """A pair of files of this process."""

    name: str
    fd: int
    """NAME.blocks, locked; closing it ends the ownership."""
    index_path: Path


class StoredFiles(NamedTuple):
    """A pair of files in a folder."""

    name: str
    num_bytes: int
    """Space on the device, index included."""
    used_at: float
    """Seconds since the epoch, when a block was last written."""
    is_owned: bool
    """True while a process has it."""


class StoreFolder:
    """An open folder. Methods raise OSError."""

    def __init__(self, path: Path, *, makes: bool = True) -> None:
        """Opens the folder, and makes it if need be and `makes`. Raises FolderError."""
        self.path = path.absolute()
        if makes:
            remedy = OWN_FOLDER
        else:
            remedy = "name the folder, no link, of a worker's --kv-disk, as the worker's user"
        try:
            if makes:
                with contextlib.suppress(FileExistsError):
                    self.path.mkdir(mode=0o700)
            self._fd = os.open(
                self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError as error:
            if makes and not self.path.parent.exists():
                remedy = f"make {self.path.parent} first"
            raise FolderError(
                f"{path} cannot be opened as a folder for KV blocks: {error.strerror}; {remedy}"
            ) from None
        try:
            self._check(remedy)
        except BaseException:
            self.close()
            raise

    def _check(self, remedy: str) -> None:
        if fault := ownership_fault(self.path, os.fstat(self._fd)):
            raise FolderError(f"{fault}; {remedy}")
        kind = file_system_of(self.path)
        if kind.is_network:
            raise FolderError(
                f"{self.path} is on {kind.name}, a file system of a network, whose locks and"
                " order of writes the disk tier cannot rely on; give a folder on a local disk"
            )

    @property
    def is_deleted(self) -> bool:
        """True if the folder is gone; one that was made in its place is another."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder's lock: no pair is taken, made, deleted or grown by others."""
        fd = self._open("lock", os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def take(self, identity: str) -> OwnedFiles:
        """Takes the pair of an identity, 32 digits, that was written last and is not owned, or
        makes one. The lock must be held."""
        numbers = []
        for name in sorted(self._names(), key=self._written_at, reverse=True):
            found, _, number = name.partition("-")
            if found == identity:
                numbers.append(int(number))
                if (fd := self._own(name)) is not None:
                    return self._owned(name, fd)
        unused = next(n for n in range(len(numbers) + 1) if n not in numbers)
        name = f"{identity}-{unused}"
        self.discard_index(name)  # one whose blocks are gone
        fd = self._open(f"{name}.blocks", os.O_CREAT | os.O_EXCL)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self._owned(name, fd)

    def own(self, name: str) -> OwnedFiles | None:
        """Takes a pair; returns None if another process has it. The lock must be held."""
        fd = self._own(name)
        return None if fd is None else self._owned(name, fd)

    def _owned(self, name: str, fd: int) -> OwnedFiles:
        self.make_index(name)
        return OwnedFiles(name, fd, self.path / f"{name}.index")

    def make_index(self, name: str) -> None:
        """Makes an empty file for an index that is not there: SQLite would let others read it."""
        os.close(self._open(f"{name}.index", os.O_CREAT))

    def discard_index(self, name: str) -> None:
        """Deletes an index, of which no connection is open."""
        for suffix in _SUFFIXES[1:]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name + suffix, dir_fd=self._fd)

    def delete(self, name: str) -> bool:
        """Deletes a pair; returns False if it is owned. The lock must be held."""
        fd = self._own(name)
        if fd is None:
            return False
        try:
            self.discard_index(name)
            os.unlink(f"{name}.blocks", dir_fd=self._fd)
        finally:
            os.close(fd)
        return True

    def files(self) -> list[StoredFiles]:
        """Returns the pairs, the one that was written longest ago first. The lock must be held."""
        found = [
            StoredFiles(name, self.num_bytes(name), self._written_at(name), self._is_owned(name))
            for name in self._names()
        ]
        return sorted(found, key=lambda one: one.used_at)

    def num_bytes(self, name: str) -> int:
        """Returns the space that a pair takes, and that its log may take."""
        total = 0
        for suffix in _SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                num_bytes = 512 * self._stat(name + suffix).st_blocks
                total += max(num_bytes, LOG_BYTES) if suffix.endswith("-wal") else num_bytes
        return total

    def read_text(self, name: str) -> str:
        """Returns the content of a small file; empty if it is not there."""
        try:
            fd = self._open(name, 0, access=os.O_RDONLY)
        except FileNotFoundError:
            return ""
        with os.fdopen(fd, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_TEXT_CHARS)

    def write_text(self, name: str, text: str) -> None:
        """Replaces a small file as a whole. The lock must be held."""
        draft = f"{name}.draft"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=self._fd)
        with os.fdopen(self._open(draft, os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def measure_read(self, num_bytes: int = 16 << 20) -> float:
        """Returns the bytes a second of reading a file that is not in memory, as far as the system
        forgets it when it is asked to; 0 if that cannot be had, as of a disk that is full."""
        try:
            with self._probe() as fd:
                return _measured_read(fd, num_bytes)
        except OSError:
            return 0.0

    def check_free(self, num_bytes: int) -> None:
        """Raises OSError unless the file system has so many bytes free."""
        status = os.fstatvfs(self._fd)
        if status.f_bavail * status.f_frsize < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def has_space(self, num_bytes: int) -> bool:
        """Says whether the disk has space, and the user may take it."""
        try:
            with self._probe() as fd:
                os.posix_fallocate(fd, 0, num_bytes)
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def _probe(self) -> Iterator[int]:
        """Yields a new file, which is gone afterwards."""
        name = f"probe-{secrets.token_hex(8)}"  # others may have one at the same time
        fd = self._open(name, os.O_CREAT | os.O_EXCL)
        try:
            os.unlink(name, dir_fd=self._fd)
            yield fd
        finally:
            os.close(fd)

    def _names(self) -> list[str]:
        with os.scandir(self._fd) as entries:
            names = [entry.name for entry in entries]
        return [name.removesuffix(".blocks") for name in names if _NAME.fullmatch(name)]

    def _written_at(self, name: str) -> float:
        return self._stat(f"{name}.blocks").st_mtime

    def _stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def _is_owned(self, name: str) -> bool:
        fd = self._own(name)
        if fd is None:
            return True
        os.close(fd)
        return False

    def _own(self, name: str) -> int | None:
        """Opens and locks NAME.blocks; returns None if another process has it, or it is not ours to
        open."""
        try:
            self._check_ours(f"{name}.index")
            fd = self._open(f"{name}.blocks", 0)
        except (OSError, FolderError):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        return fd

    def _open(self, name: str, flags: int, *, access: int = os.O_RDWR) -> int:
        fd = os.open(name, _OPEN | access | flags, 0o600, dir_fd=self._fd)
        try:
            self._check_status(name, os.fstat(fd))
        except FolderError:
            os.close(fd)
            raise
        return fd

    def _check_ours(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._check_status(name, self._stat(name))

    def _check_status(self, name: str, status: os.stat_result) -> None:
        is_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not is_file or not is_private(status):
            raise FolderError(
                f"{self.path / name} is no file that only this user can read and write; delete it"
            )


def _measured_read(fd: int, num_bytes: int) -> float:
    data = memoryview(os.urandom(1 << 20))
    for offset in range(0, num_bytes, len(data)):
        os.pwrite(fd, data, offset)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    for offset in range(0, num_bytes, len(data)):
        os.pread(fd, len(data), offset)
    return num_bytes / (time.perf_counter() - start)

"""File locks: a process holds one until it ends, even if it is killed."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class FileLock:
    """A file that this process locks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self) -> None:
        """Creates and locks the file; does nothing in a read-only folder."""
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def is_held(path: Path) -> bool:
    """Returns whether a living process holds the lock of a file; False if there is no file."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


@contextlib.contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Holds the lock of a file while the block runs; other processes wait.

    A read-only folder needs no lock.
    """
    try:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)

"""Temporary folders that only this user can enter, and that go with their process.

The process removes its own. Those of a process that was killed are removed when the next folder is
made, or by a process that it had started: an owner holds a lock on its folder, which the system
releases however the owner ends.
"""

import atexit
import fcntl
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

KINDS = ("adapters", "heads", "ranks", "stack")
"""Purposes of folders, which their names have."""
_PREFIX = "signalbox-"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

_open: "set[PrivateFolder]" = set()


class PrivateFolder:
    """A new folder in the temporary directory."""

    def __init__(self, kind: str) -> None:
        remove_leftovers()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-"))
            try:
                self._lock = os.open(self.path, _FLAGS)
            except FileNotFoundError:  # taken for a leftover
                continue
            with suppress(OSError):  # a file system without locks: no other process removes it
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():  # was not being removed meanwhile
                break
            os.close(self._lock)
        self._owner_pid = os.getpid()
        _open.add(self)

    def close(self) -> None:
        """Removes it; does nothing a second time, or in a process forked from its owner."""
        if self in _open and os.getpid() == self._owner_pid:
            _open.discard(self)
            discard(self.path)
            os.close(self._lock)


def discard(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def close_all() -> None:
    """Removes the folders of this process, which is about to end."""
    for folder in [*_open]:
        folder.close()


atexit.register(close_all)


def remove_leftovers() -> None:
    """Removes this user's folders of processes that ended without removing them."""
    root = Path(tempfile.gettempdir())
    for path in (path for kind in KINDS for path in root.glob(f"{_PREFIX}{kind}-*")):
        try:
            lock = os.open(path, _FLAGS)
        except OSError:
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                discard(path)
                logger.info("removed %s, which a process that was killed has left", path)
        except OSError:
            continue  # its process lives, or there are no locks
        finally:
            os.close(lock)

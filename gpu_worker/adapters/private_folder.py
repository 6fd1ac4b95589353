"""A temporary folder that only this user can enter.

Its process removes it, or the next process that looks for leftovers: the owner holds a lock on the
folder, which the system releases however the process ends.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

_PREFIX = "signalbox-adapters-"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class PrivateFolder:
    """A new folder in the temporary directory."""

    def __init__(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                self._lock = os.open(self.path, _FLAGS)
            except FileNotFoundError:  # taken for a leftover
                continue
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():  # was not being removed meanwhile
                return
            os.close(self._lock)

    def close(self) -> None:
        """Removes it."""
        discard(self.path)
        os.close(self._lock)


def discard(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers() -> None:
    """Removes this user's folders of processes that ended without removing them."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(path, _FLAGS)
        except OSError:
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                discard(path)
                logger.info("removed %s, which a process that was killed has left", path)
        except BlockingIOError:
            continue  # its process lives
        finally:
            os.close(lock)

"""Digests of all bytes of files, kept as long as the system says that a file is the same.

A digest of 100 GB takes a minute of one core where the processor has instructions for SHA-256 and
the pages are in memory, so it is made beside the steps, once for each file: later it is known by
device, inode, size, and the times of change to the nanosecond. The system sets the last of these
times at every change, and no program can set it.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import NamedTuple

_READ_BYTES = 4 << 20
_RACY_NS = 2_000_000_000
"""A file that changed as shortly before it was read may change again within one tick of a clock."""

Digests = MutableMapping[str, str]
"""SHA-256 in hex, by what `ContentFile.state` says."""


class FilesChanged(Exception):
    """A file is not what it was when it was noted."""


class ContentFile(NamedTuple):
    """A file as it was before anything was read of it."""

    path: Path
    state: str
    changed_ns: int

    @classmethod
    def note(cls, path: Path) -> "ContentFile":
        status = path.stat()
        fields = (status.st_dev, status.st_ino, status.st_size)
        times = (status.st_mtime_ns, status.st_ctime_ns)
        return cls(path, "-".join(map(str, fields + times)), status.st_ctime_ns)


def content_digest(
    files: Sequence[ContentFile], digests: Digests, *, is_called_off: Callable[[], bool]
) -> bytes:
    """Returns a digest of the bytes of files, in their order; names and places do not count.

    Raises FilesChanged if a file has changed since it was noted, or the call was called off.

    Args:
        digests: those that are known; new ones are added.
    """
    whole = hashlib.sha256()
    for file in files:
        known = digests.get(file.state)
        if known is None:
            known = _read(file.path, is_called_off)
            if time.time_ns() - file.changed_ns > _RACY_NS:
                digests[file.state] = known
        if ContentFile.note(file.path) != file:
            raise FilesChanged(f"{file.path} has changed since the model was loaded")
        whole.update(bytes.fromhex(known))
    return whole.digest()


def _read(path: Path, is_called_off: Callable[[], bool]) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            if is_called_off():
                raise FilesChanged("called off")
    return digest.hexdigest()


def yield_to_others() -> None:
    """Gives the calling thread the lowest priority, beside threads that compute steps."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

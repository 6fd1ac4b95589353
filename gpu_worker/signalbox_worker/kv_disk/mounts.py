"""Tells which file system a folder is on, and whether that is one of a network."""

import os
import re
from pathlib import Path
from typing import NamedTuple

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

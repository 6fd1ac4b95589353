"""Whose a folder with KV blocks is, from which prompts can be computed."""

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def is_private(status: os.stat_result) -> bool:
    """Says whether a file or folder is this user's, and no other may use it."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS


def ownership_fault(path: Path, status: os.stat_result) -> str:
    """Returns why blocks cannot be kept in a folder, and the remedy; empty if they can."""
    if is_private(status):
        return ""
    return (
        f"{path} must belong to the user of the worker, and to nobody else: prompts can be"
        f" computed from KV blocks; chown it, and chmod 700 {path}"
    )

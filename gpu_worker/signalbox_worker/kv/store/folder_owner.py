"""Checks that only its user may enter a folder of KV blocks, from which prompts can be computed."""

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
OWN_FOLDER = "give a folder, no link, that the worker can make, or one of its user with mode 700"
"""Remedy for a fault of `ownership_fault`."""


def is_private(status: os.stat_result) -> bool:
    """Says whether a file or folder is this user's, and no other may use it."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS


def ownership_fault(path: Path, status: os.stat_result) -> str:
    """Returns why blocks cannot be kept in a folder, without a remedy; empty if they can."""
    if is_private(status):
        return ""
    return f"{path} is not this user's alone, and prompts can be computed from KV blocks"

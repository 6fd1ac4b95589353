"""Folders of what later starts run or compute with, which no other user may write to."""

import os
from pathlib import Path

_OTHERS_MAY_WRITE = 0o022


class UnusableFolder(Exception):
    """Nothing can be kept in a folder; the message says why."""


def own_folder(folder: Path) -> Path:
    """Returns a folder, which is made if need be. Raises UnusableFolder."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.stat()
    except OSError as error:
        raise UnusableFolder(f"{folder}: {error.strerror}") from None
    if state.st_uid != os.geteuid():
        raise UnusableFolder(f"{folder} belongs to another user (uid {state.st_uid})")
    if state.st_mode & _OTHERS_MAY_WRITE:
        raise UnusableFolder(f"{folder} can be written by other users; chmod go-w {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UnusableFolder(f"{folder} cannot be written")
    return folder

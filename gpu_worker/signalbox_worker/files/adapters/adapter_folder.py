"""Finds an adapter that an operator names at run time, below the one folder that may hold them."""

import os
from pathlib import Path

from signalbox_worker.config import ModelError
from signalbox_worker.files.adapters.peft_adapter import CONFIG, WEIGHTS


class NoSuchFolder(ModelError):
    """There is no folder of the given path."""


def find_below(root: Path | None, path: str) -> Path:
    """Returns the folder of an adapter, links resolved.

    Args:
        root: --adapter-dir.
        path: folder below it, relative to it or absolute.

    Raises NoSuchFolder, or ModelError if it or a file of it is elsewhere.
    """
    if root is None:
        raise NoSuchFolder("this worker takes adapters at its start alone; set --adapter-dir")
    top, given = root.resolve(), Path(path)
    if not path or "\0" in path:
        raise ModelError("path is empty or no path; name a folder below --adapter-dir")
    try:
        folder = (top / given).resolve()
        files = [(folder / name).resolve() for name in (CONFIG, WEIGHTS)]
    except (OSError, RuntimeError):  # links that lead in a circle
        raise ModelError(f"{path} has links that lead nowhere; copy the adapter there") from None
    for place in (folder, *files):
        if place == top or not place.is_relative_to(top):
            raise ModelError(
                f"{path} is not below --adapter-dir, links resolved; copy the adapter there"
            )
    if not os.path.isdir(folder):  # noqa: PTH112 - False, too, for one that cannot be entered
        raise NoSuchFolder(f"there is no folder {path} below --adapter-dir")
    return folder

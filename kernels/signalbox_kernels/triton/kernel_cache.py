"""Gives Triton a folder for compiled kernels that no other user may write to, since it holds code.

Triton writes each file in one atomic step, so several workers may share the folder.
"""

import logging
import os
import tempfile
from functools import cache
from pathlib import Path

from signalbox_kernels.build import BuildError, cache_folder
from signalbox_kernels.own_folder import UnusableFolder, own_folder

logger = logging.getLogger(__name__)

_VARIABLE = "TRITON_CACHE_DIR"
_NAME = "triton"


def use_kernel_cache(wanted: Path | None) -> Path:
    """Makes Triton keep what it compiles in a folder of `wanted`, and returns that folder.

    Without a usable folder there is a warning, and kernels are kept while the process lasts.

    Args:
        wanted: None is the folder of TRITON_CACHE_DIR, or else one in the user's cache.
    """
    try:
        folder = usable_folder(wanted)
    except UnusableFolder as fault:
        folder = Path(_folder_of_this_process().name)
        logger.warning("compiled kernels are not kept for the next start: %s", fault)
    os.environ[_VARIABLE] = str(folder)
    return folder


def usable_folder(wanted: Path | None) -> Path:
    """Returns the folder that `use_kernel_cache` would take, which is made if need be.

    Raises UnusableFolder.
    """
    folder = own_folder(_chosen(wanted))
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise UnusableFolder(f"{folder} is on a file system that is mounted noexec")
    return folder


def _chosen(wanted: Path | None) -> Path:
    if wanted is not None:
        try:
            return wanted.expanduser().absolute() / _NAME
        except RuntimeError as error:  # no such user
            raise UnusableFolder(f"{wanted}: {error}") from None
    if of_user := os.environ.get(_VARIABLE):
        return Path(of_user).absolute()
    try:
        return cache_folder() / _NAME
    except BuildError as error:
        raise UnusableFolder(str(error)) from None


@cache
def _folder_of_this_process() -> "tempfile.TemporaryDirectory[str]":
    """Returns a folder that goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="signalbox-kernels-")

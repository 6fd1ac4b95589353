"""Keeps packed weights in a folder, so that a later start neither reads nor packs the model.

A file is named by all that its bytes depend on: the model's files, their form, the rank's share,
and our sources. Processes may share the folder; the files that were used least recently leave it.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from signalbox_kernels.arena import Arena, PackedMismatch
from signalbox_kernels.build import BuildError, cache_folder, only_builder
from signalbox_kernels.floats import AnyArray
from signalbox_kernels.own_folder import UnusableFolder, own_folder
from signalbox_kernels.packed_file import PART, FileArena, open_packed, write_packed
from signalbox_worker.config import GIB
from signalbox_worker.device.ram import available_ram, let_drop
from signalbox_worker.runner.loading.block_content import own_sources
from signalbox_worker.runner.loading.content_files import yield_to_others
from signalbox_worker.runner.native.known_tensors import KnownTensors

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_BYTES = 20 * GIB
"""Bytes of all files of a folder."""
_LEAST_BYTES = 1 * GIB
"""Smaller weights are packed in a second, and not kept unless a folder is given."""
_KEPT_FREE = 20
"""Part of a disk that stays free."""
_SUFFIX = ".packed"
_NAME = "name"
"""Array in a file with the name that it was written for."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """The file of one rank's weights.

    Args:
        path: None keeps nothing.
        least_bytes: smaller weights are not kept.
    """

    path: Path | None
    num_threads: int
    least_bytes: int = 0

    def load(
        self, compile_with: Callable[[Arena, KnownTensors], T], *, on_disk_bytes: int = 0
    ) -> T:
        """Compiles a program with the weights of the file, or packs them and keeps them.

        Args: on_disk_bytes: size of weights that memory cannot hold, which are packed into the
            file; 0 of others.

        Raises MemoryError if the disk has no room for them.
        """
        if self.path is not None:
            let_drop(on_disk_bytes)
            if (made := self._from_kept(self.path, compile_with)) is not None:
                return made
            if on_disk_bytes:
                return self._pack_to_disk(self.path, on_disk_bytes, compile_with)
        arena, known = Arena(num_threads=self.num_threads), KnownTensors()
        made = compile_with(arena, known)
        if self.path is not None and arena.num_bytes >= self.least_bytes:
            _Keeping(self.path, arena, known).start()
        return made

    def _from_kept(self, path: Path, compile_with: Callable[[Arena, KnownTensors], T]) -> T | None:
        """Compiles a program with the weights of the file; None if there is none that can be used,
        and one that is damaged is gone."""
        if not path.exists():
            return None
        try:
            return self._load_kept(path, compile_with)
        except OSError as error:
            logger.warning("%s is not used: %s", path, error.strerror)
        except (PackedMismatch, KeyError) as error:
            logger.warning("%s is not used, and made again: %s", path, error)
            with suppress(OSError):
                path.unlink()
        return None

    def _pack_to_disk(
        self, path: Path, num_bytes: int, compile_with: Callable[[Arena, KnownTensors], T]
    ) -> T:
        try:
            with only_builder(path.parent):
                if (of_another := self._from_kept(path, compile_with)) is not None:
                    return of_another  # a process that was first, while this one waited
                _make_room(path.parent, num_bytes)
                arena, known = FileArena(path.parent, num_threads=self.num_threads), KnownTensors()
                try:
                    made = compile_with(arena, known)
                    arena.save(path, _named(path, known))
                finally:
                    arena.discard()
        except OSError as error:
            raise MemoryError(
                f"the weights do not fit in memory, and not in {path.parent}: {error.strerror}"
            ) from None
        logger.info("weights: packed into %s, %d MiB", path, arena.num_bytes >> 20)
        return made

    def _load_kept(self, path: Path, compile_with: Callable[[Arena, KnownTensors], T]) -> T:
        may_copy = available_ram() > path.stat().st_size
        found = open_packed(path, num_threads=self.num_threads, may_copy=may_copy)
        about = dict(found.about)
        if about.pop(_NAME, np.empty(0)).tobytes() != path.name.encode():
            raise PackedMismatch("it is that of other weights")
        os.utime(path)  # the last use
        arena = Arena(num_threads=self.num_threads, before=found)
        made = compile_with(arena, KnownTensors(about))
        how = "mapped" if found.is_mapped else "read"
        logger.info("weights: packed before, %d MiB %s from %s", found.num_bytes >> 20, how, path)
        return made


class _Keeping(threading.Thread):
    """Writes a file beside the steps; what is left of it if the process ends is removed later."""

    def __init__(self, path: Path, arena: Arena, known: KnownTensors) -> None:
        super().__init__(name="keep packed weights", daemon=True)
        self._path, self._arena, self._known = path, arena, known

    def run(self) -> None:
        with suppress(OSError):
            yield_to_others()
        try:
            with only_builder(self._path.parent):
                if self._path.exists():  # another process was first
                    return
                _make_room(self._path.parent, self._arena.num_bytes)
                write_packed(self._path, self._arena, _named(self._path, self._known))
        except OSError as error:
            logger.warning("packed weights are not kept: %s: %s", self._path, error.strerror)
        else:
            size = self._arena.num_bytes >> 20
            logger.info("weights: kept packed for later starts, %d MiB in %s", size, self._path)


def _named(path: Path, known: KnownTensors) -> dict[str, AnyArray]:
    return known.about() | {_NAME: np.frombuffer(path.name.encode(), dtype=np.uint8)}


def _make_room(folder: Path, num_bytes: int) -> None:
    """Removes what is left of writers that have ended, and the files that were used least recently.

    Raises OSError if there is no room nevertheless.
    """
    for left in folder.glob(f"*{PART}"):
        left.unlink()
    kept = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime)
    used = sum(path.stat().st_size for path in kept)
    while kept and used + num_bytes > MOST_BYTES:
        used -= kept[0].stat().st_size
        kept.pop(0).unlink()
    disk = shutil.disk_usage(folder)
    room = min(MOST_BYTES, disk.free - disk.total // _KEPT_FREE)
    if num_bytes > room:
        raise OSError(0, f"{num_bytes >> 20} MiB do not fit into {max(0, room) >> 20} MiB")


def packed_weights(
    option: str, name: str, about: object, files: Sequence[Path], *, num_threads: int
) -> PackedWeights:
    """Returns where the weights of a model are kept.

    Args:
        option: value of `--packed-weights`.
        about: all that the bytes depend on beside the files and our sources.
        files: of the model; empty if its weights are made up, which are not kept.
    """
    none = PackedWeights(path=None, num_threads=num_threads)
    if option == "off" or not files:
        return none
    is_auto = option == "auto"
    try:
        wanted = cache_folder() / "packed" if is_auto else Path(option).expanduser().absolute()
        folder = own_folder(wanted)
    except (UnusableFolder, BuildError, RuntimeError) as error:
        # a container without a folder for caches has none to mend
        logger.log(
            logging.INFO if is_auto else logging.WARNING, "packed weights are not kept: %s", error
        )
        return none
    digest = hashlib.sha256(own_sources() + _ADDRESS.sub("", repr(about)).encode())
    states = [(path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    digest.update(json.dumps(states).encode())
    path = folder / f"{_UNSAFE.sub('-', name)[:60]}-{digest.hexdigest()[:32]}{_SUFFIX}"
    least = _LEAST_BYTES if is_auto else 0
    return PackedWeights(path=path, num_threads=num_threads, least_bytes=least)

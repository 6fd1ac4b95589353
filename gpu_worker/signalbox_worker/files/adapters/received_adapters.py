"""Files of adapters that other workers have sent, in a folder that only this user can enter.

They stay while the adapter is loaded, so that a further worker can be sent them, and are removed
with it, or when the worker ends; after a worker that was killed, when the next one starts.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from signalbox_rpc.lifetime.private_folder import PrivateFolder, discard
from signalbox_worker.config import ModelError
from signalbox_worker.files.adapters.peft_adapter import CONFIG, WEIGHTS

MAX_BYTES = 2 << 30
"""Bytes of an adapter's files."""
CHUNK_BYTES = 1 << 20


class FileChunk(NamedTuple):
    """A run of bytes of a file; those of a file come in order."""

    file_name: str
    content: bytes


class ReceivedAdapters:
    """The folders, by the SHA-256 of what they must have."""

    def __init__(self) -> None:
        self._root: PrivateFolder | None = None
        self._folders: dict[str, Path] = {}

    def begin(self) -> Path:
        """Returns a new folder for the files of one adapter. Raises ModelError."""
        with _writing():
            if self._root is None:
                self._root = PrivateFolder("adapters")
            return Path(tempfile.mkdtemp(dir=self._root.path))

    def keep(self, sha256: str, folder: Path) -> None:
        """Keeps a folder until `remove`; another one of the same content goes."""
        self.remove(sha256)
        self._folders[sha256] = folder

    def find(self, sha256: str) -> Path | None:
        return self._folders.get(sha256)

    def remove(self, sha256: str) -> None:
        if (folder := self._folders.pop(sha256, None)) is not None:
            discard(folder)

    def close(self) -> None:
        if self._root is not None:
            self._root.close()
            self._root = None


def write_chunk(folder: Path, chunk: FileChunk) -> None:
    """Appends to a file of an adapter. Raises ModelError for other files, or too many bytes."""
    if chunk.file_name not in (CONFIG, WEIGHTS):
        raise ModelError(f"{chunk.file_name[:100]!r} is no file of an adapter")
    with _writing():
        num_bytes = sum(file.stat().st_size for file in folder.iterdir()) + len(chunk.content)
        if num_bytes > MAX_BYTES:
            allowed = f"{MAX_BYTES >> 30} GiB"
            raise ModelError(f"the adapter has more than {allowed}; copy it to all workers")
        with (folder / chunk.file_name).open("ab") as file:
            file.write(chunk.content)


@contextmanager
def _writing() -> Iterator[None]:
    """Makes an error of the system a ModelError: a disk may be full, a folder may vanish."""
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"the adapter cannot be written to {tempfile.gettempdir()} ({error.strerror}); copy it"
            " below --adapter-dir"
        ) from None


def read_chunks(folder: Path) -> Iterator[FileChunk]:
    """Yields the files of an adapter. Raises ModelError if one cannot be read."""
    for name in (CONFIG, WEIGHTS):
        try:
            with (folder / name).open("rb") as file:
                while content := file.read(CHUNK_BYTES):
                    yield FileChunk(name, content)
        except OSError as error:
            raise ModelError(
                f"{name} cannot be read any more ({error.strerror}); load the adapter again"
            ) from None

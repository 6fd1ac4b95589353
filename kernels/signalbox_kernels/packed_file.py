"""Files of packed matrices, which later starts map: what is in memory then is the page cache's.

A file is the matrices as they lie in memory, then arrays that describe them, then a trailer with
digests. A file appears under its name in one atomic step, so a cut one is another program's work
or a disk's; it is noticed by its length, the digest of the description, and that of samples.
"""

import ctypes
import hashlib
import io
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from signalbox_kernels.arena import Arena, PackedForm, PackedMismatch, PackedRun
from signalbox_kernels.floats import AnyArray
from signalbox_kernels.pages import map_pages

_MAGIC = b"signalbox packed"
_TRAILER = struct.Struct("<16sQQ32s32s")
"""Magic, bytes of the matrices and of the description, their digests."""
_FORMS = "forms"
PART = ".part"
"""End of the name of a file that is being written."""
_SAMPLES, _SAMPLE_BYTES = 512, 4 << 10
_CHUNK, _MOST_PIECES = 8 << 20, 1024
_ALIGNMENT = 64
_POPULATE_READ = 22
"""MADV_POPULATE_READ, since Linux 5.14, which Python does not name."""
_SMAPS = Path("/proc/self/smaps")


def write_packed(path: Path, arena: Arena, about: Mapping[str, AnyArray]) -> None:
    """Writes the packed matrices of an arena with some arrays about them. Raises OSError, and
    leaves nothing then."""
    offsets, end = list[int](), 0
    for one in arena.packed:
        offsets.append(end)
        end += -(-one.num_bytes // _ALIGNMENT) * _ALIGNMENT
    file, part = _new_part(path.parent)
    try:
        with file:
            _write(file, _pieces(arena.packed))
            _finish(file, arena.packed, offsets, end, about)
        part.replace(path)
    except BaseException:
        part.unlink()
        raise
    _sync_folder(path)


class FileArena(Arena):
    """Packs into a file, for matrices that memory cannot hold: the system writes pages to the disk
    while others are packed, and drops those that no step reads."""

    def __init__(self, folder: Path, *, num_threads: int) -> None:
        """Raises OSError."""
        super().__init__(num_threads=num_threads)
        self._file, self._part = _new_part(folder)
        self._places: list[int] = []
        self._file_bytes = 0

    def _map(self, size: int) -> mmap.mmap:
        size = -(-size // _CHUNK) * _CHUNK
        os.posix_fallocate(self._file.fileno(), self._file_bytes, size)  # else a write ends us
        self._places.append(self._file_bytes)
        self._file_bytes += size
        return mmap.mmap(self._file.fileno(), size, offset=self._places[-1])

    def save(self, path: Path, about: Mapping[str, AnyArray]) -> None:
        """Gives the file its name, as `write_packed` writes one. Raises OSError."""
        bases = [_address(region) for region in self._regions]
        found = [
            (at + one.address - base)
            for one in self.packed
            for base, at, region in zip(bases, self._places, self._regions, strict=True)
            if base <= one.address < base + len(region)
        ]
        for region in self._regions:
            region.flush()
        self._file.seek(self._file_bytes)
        _finish(self._file, self.packed, found, self._file_bytes, about)
        self._part.replace(path)
        self._file.close()
        _sync_folder(path)

    def discard(self) -> None:
        """Removes a file that has no name yet."""
        self._file.close()
        self._part.unlink(missing_ok=True)


def _new_part(folder: Path) -> tuple[io.FileIO, Path]:
    fd, name = tempfile.mkstemp(suffix=PART, dir=folder)  # of mode 600
    return os.fdopen(fd, "r+b", buffering=0), Path(name)


def _finish(
    file: io.FileIO,
    packed: Sequence[PackedRun],
    offsets: Sequence[int],
    end: int,
    about: Mapping[str, AnyArray],
) -> None:
    """Writes the description and the trailer behind the matrices."""
    forms = [(*one.form, at) for one, at in zip(packed, offsets, strict=True)]
    described = io.BytesIO()
    np.savez(described, allow_pickle=False, **about, **{_FORMS: np.array(forms, dtype=np.int64)})
    _write(file, [described.getbuffer()])
    of_samples = _digest_of_samples(lambda at, to: os.pread(file.fileno(), to - at, at), end)
    digests = of_samples, hashlib.sha256(described.getbuffer()).digest()
    _write(file, [memoryview(_TRAILER.pack(_MAGIC, end, described.tell(), *digests))])
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    with suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def _pieces(packed: Iterable[PackedRun]) -> Iterator[memoryview]:
    """Yields the matrices, and what is between them."""
    for one in packed:
        yield memoryview((ctypes.c_char * one.num_bytes).from_address(one.address)).cast("B")
        yield memoryview(bytes(-one.num_bytes % _ALIGNMENT))


def _write(file: io.FileIO, pieces: Iterable[memoryview]) -> None:
    """Writes whole chunks at a time: the page cache then has huge pages, where it can."""
    waiting, room = list[memoryview](), _CHUNK
    for piece in pieces:
        while len(piece):
            waiting.append(piece[:room])
            piece, room = piece[room:], room - len(waiting[-1])
            if not room:
                _write_chunk(file, waiting)
                waiting, room = [], _CHUNK
    _write_chunk(file, waiting)


def _write_chunk(file: io.FileIO, pieces: list[memoryview]) -> None:
    while pieces:
        count = os.writev(file.fileno(), pieces[:_MOST_PIECES])
        while pieces and count >= len(pieces[0]):
            count -= len(pieces.pop(0))
        if pieces:
            pieces[0] = pieces[0][count:]


def _digest_of_samples(read: Callable[[int, int], bytes], num_bytes: int) -> bytes:
    """Args: read: returns the bytes from an offset to before another."""
    digest, stride = hashlib.sha256(), max(_SAMPLE_BYTES, num_bytes // _SAMPLES)
    for offset in range(0, num_bytes, stride):
        digest.update(read(offset, min(offset + _SAMPLE_BYTES, num_bytes)))
    return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFile:
    """Matrices of a file in memory, in the order in which they were packed."""

    forms: tuple[tuple[int, ...], ...]
    about: Mapping[str, AnyArray]
    memory: mmap.mmap
    num_bytes: int
    is_mapped: bool
    """False if it has been read into memory of its own."""

    def address_of(self, index: int, form: PackedForm) -> int:
        """Returns where matrices are. Raises PackedMismatch if others are there."""
        if index >= len(self.forms) or self.forms[index][:-1] != tuple(map(int, form)):
            raise PackedMismatch(f"its matrices {index} are not {form}")
        return _address(self.memory) + self.forms[index][-1]


def open_packed(path: Path, *, num_threads: int, may_copy: bool = True) -> PackedFile:
    """Maps a file, or reads it by threads where the system gives it no huge pages: a step reads
    small pages more slowly.

    Args: may_copy: False maps it in any case, and leaves on the disk what no step has read.

    Raises OSError, or PackedMismatch for a file that is damaged.
    """
    with path.open("rb", buffering=0) as file:
        end, about, of_samples = _described(file.fileno())
        forms = tuple(tuple(map(int, form)) for form in about.pop(_FORMS))
        memory = mmap.mmap(file.fileno(), max(end, 1), access=mmap.ACCESS_READ)
        is_mapped = not may_copy or _is_on_huge_pages(memory)
        if not is_mapped:
            memory.close()
            memory = _read(file.fileno(), end, num_threads)
    # through memory: reads of their own would leave small pages of the file there
    if _digest_of_samples(lambda at, to: memory[at:to], end) != of_samples:
        raise PackedMismatch("its matrices are damaged")
    return PackedFile(forms=forms, about=about, memory=memory, num_bytes=end, is_mapped=is_mapped)


def _described(fd: int) -> tuple[int, dict[str, AnyArray], bytes]:
    """Returns the bytes of the matrices, the arrays about them, and the digest of samples."""
    size = os.fstat(fd).st_size
    trailer = os.pread(fd, _TRAILER.size, max(0, size - _TRAILER.size))
    if len(trailer) < _TRAILER.size:
        raise PackedMismatch("it is cut off")
    magic, end, length, of_samples, of_description = _TRAILER.unpack(trailer)
    if magic != _MAGIC or end + length + _TRAILER.size != size:
        raise PackedMismatch("it is cut off")
    described = os.pread(fd, length, end)
    if hashlib.sha256(described).digest() != of_description:
        raise PackedMismatch("its description is damaged")
    with np.load(io.BytesIO(described), allow_pickle=False) as arrays:
        return end, dict(arrays), of_samples


def _address(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)


def _is_on_huge_pages(memory: mmap.mmap) -> bool:
    """Brings all of a mapped file into memory; says whether nearly all of it is on huge pages."""
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, len(memory), _CHUNK):  # each holds the interpreter's lock
            memory.madvise(_POPULATE_READ, start, min(_CHUNK, len(memory) - start))
        lines = iter(_SMAPS.read_text().splitlines())
    except (OSError, AttributeError):
        return False
    begin = f"{_address(memory):x}-"
    for line in lines:
        if line.startswith(begin):
            found = next((one for one in lines if one.startswith("FilePmdMapped:")), "0 0")
            return int(found.split()[1]) * 1024 * 16 > len(memory) * 15
    return False


def _read(fd: int, num_bytes: int, num_threads: int) -> mmap.mmap:
    memory = map_pages(max(num_bytes, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    into = memoryview(memory)

    def fill(start: int) -> None:
        end = min(start + _CHUNK, num_bytes)
        while start < end:
            count = os.preadv(fd, [into[start:end]], start)
            if not count:
                raise PackedMismatch("it is cut off")
            start += count

    with ThreadPoolExecutor(num_threads, "read") as pool:
        list(pool.map(fill, range(0, num_bytes, _CHUNK)))
    return memory

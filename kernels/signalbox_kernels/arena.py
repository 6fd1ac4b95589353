"""Memory for packed weights: large anonymous mappings, on huge pages where the system has them.

Weights are read front to back every step; huge pages save most of the translations. Matrices are
packed by threads in parts of some rows, each read, converted and packed while it is in the
processor's cache, so that a matrix is in memory once.
"""

import ctypes
import mmap
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_kernels.native import library
from signalbox_kernels.pages import forget_parts, joined_rows, map_pages
from signalbox_kernels.storage import Matrix, Storage, StoredMatrix, stored
from signalbox_kernels.structs import PANEL

_ALIGNMENT = 64
_REGION = 64 << 20
_PART_BYTES = 1 << 20
"""Bytes of the rows that a thread packs at once, about."""
_PARTS_AHEAD = 4
"""Parts for each thread that wait at most: what is taken of a model is read soon afterwards."""


class Packed(NamedTuple):
    """A packed matrix: its address and how it is stored."""

    address: int
    num_rows: int
    type: Storage


class PackedForm(NamedTuple):
    """Form of matrices that were packed one behind the other."""

    type: Storage
    num_rows: int
    num_columns: int
    interleaved: bool
    num_matrices: int


class PackedRun(NamedTuple):
    """Matrices of one form in memory, one behind the other."""

    form: PackedForm
    address: int
    num_bytes: int


class PackedMismatch(ValueError):
    """Packed matrices are not those that are asked for; the message says what is wrong."""


class PackedBefore(Protocol):
    """Matrices that an earlier arena packed."""

    def address_of(self, index: int, form: PackedForm) -> int:
        """Returns where the matrices are that were packed as the `index`th. Raises
        PackedMismatch."""
        ...


class Arena:
    """Allocates zeroed memory that lives as long as the arena.

    With several threads, matrices are packed when `finish` returns.
    """

    def __init__(self, *, num_threads: int = 1, before: PackedBefore | None = None) -> None:
        """Args: before: has all matrices, in their order; none is read or packed then."""
        self._num_threads, self._before = num_threads, before
        self.packed: list[PackedRun] = []
        """All matrices, in the order in which they were packed."""
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()
        self._regions: list[mmap.mmap] = []
        self._arrays: list[AnyArray] = []
        self._next = self._end = 0
        self._num_bytes = 0
        self._types: Counter[str] = Counter()

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed matrices and of the arrays kept beside them."""
        return self._num_bytes + sum(array.nbytes for array in self._arrays)

    @property
    def description(self) -> str:
        """Types of the packed matrices, such as "matrices: 120 of Q4_1, 1 of Q8_0; 92 MiB"."""
        kinds = [f"{count} of {name}" for name, count in self._types.most_common()]
        return f"matrices: {', '.join(kinds)}; {self._num_bytes >> 20} MiB"

    def allocate(self, size: int) -> int:
        """Returns the address of `size` bytes."""
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        if self._next + size > self._end:
            self._grow(max(size, _REGION))
        address, self._next = self._next, self._next + size
        return address

    def _grow(self, size: int) -> None:
        region = self._map(size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            region.madvise(mmap.MADV_HUGEPAGE)
        self._regions.append(region)
        self._next = ctypes.addressof(ctypes.c_char.from_buffer(region))
        self._end = self._next + size

    def _map(self, size: int) -> mmap.mmap:
        return map_pages(size)

    def pack(self, weight: Matrix, *, interleaved: bool = False) -> Packed:
        """Packs [out_features, in_features] as it is stored."""
        return self.pack_all([weight], 1, interleaved=interleaved)

    def pack_all(
        self, weights: Iterable[Matrix], count: int, *, interleaved: bool = False
    ) -> Packed:
        """Packs `count` matrices of one shape and type one behind the other, each as it comes."""
        lib, packed, size = library(), None, 0
        for index, matrix in enumerate(map(stored, weights)):
            rows, columns = matrix.shape
            if packed is None:
                size = lib.sb_packed_bytes(matrix.type, rows, columns, interleaved)
                self._types[matrix.type.name] += count
                self._num_bytes += count * size
                form = PackedForm(matrix.type, rows, columns, interleaved, count)
                packed = Packed(self._place(form, count * size), rows, matrix.type)
            assert (rows, matrix.type) == packed[1:], "matrices of one shape and type"
            if self._before is None:
                self._pack_parts(matrix, packed.address + index * size, size, interleaved)
        assert packed is not None and index == count - 1
        return packed

    def _place(self, form: PackedForm, num_bytes: int) -> int:
        """Returns where matrices are, or are to be packed."""
        if self._before is None:
            address = self.allocate(num_bytes)
        else:
            address = self._before.address_of(len(self.packed), form)
        self.packed.append(PackedRun(form, address, num_bytes))
        return address

    def _pack_parts(self, matrix: StoredMatrix, address: int, size: int, interleaved: bool) -> None:
        """Packs panels in parts. What cannot be read in parts is read here, and gone afterwards."""
        is_whole = matrix.read_rows is None
        if is_whole:
            blocks = matrix.blocks
            matrix = replace(matrix, read_rows=lambda start, end: blocks[start:end])
        rows = matrix.shape[0]
        most, width = (rows // 2, PANEL // 2) if interleaved else (rows, PANEL)
        num_panels = -(-most // width)
        panel_bytes = size // num_panels
        step = max(1, _PART_BYTES // panel_bytes) * width
        for start in range(0, most, step):
            at = address + start // width * panel_bytes
            self._begin(
                self._pack_rows, matrix, range(start, min(start + step, most)), interleaved, at
            )
        if is_whole:
            self._wait(0)

    def _pack_rows(
        self, matrix: StoredMatrix, rows: range, interleaved: bool, address: int
    ) -> None:
        """Reads and packs the panels of some rows; of an interleaved matrix those of both halves.

        A thread that runs this keeps the arena, which may be given up before all is packed.
        """
        assert matrix.read_rows is not None
        blocks, columns = matrix.read_rows(rows.start, rows.stop), matrix.shape[1]
        if interleaved:
            half = matrix.shape[0] // 2
            blocks = joined_rows([blocks, matrix.read_rows(half + rows.start, half + rows.stop)])
        blocks = np.ascontiguousarray(blocks)
        source = blocks.ctypes.data, blocks.strides[0]
        library().sb_pack(matrix.type, *source, len(blocks), columns, interleaved, address)

    def _begin(self, work: Callable[..., None], *args: object) -> None:
        if self._num_threads == 1:
            work(*args)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, "pack")
        self._waiting.append(self._pool.submit(work, *args))
        self._wait(_PARTS_AHEAD * self._num_threads)

    def _wait(self, most: int) -> None:
        """Waits until so few parts are left. Raises what one of them raises."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def finish(self) -> None:
        """Waits until all matrices are packed, and ends the threads."""
        try:
            self._wait(0)
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None
            forget_parts()

    def keep(self, array: AnyArray) -> int:
        """Keeps an array alive, and contiguous; returns its address."""
        array = np.ascontiguousarray(array)
        self._arrays.append(array)
        return int(array.ctypes.data)

    def keep_struct(self, struct: ctypes.Structure) -> int:
        """Keeps the bytes of a struct that an op refers to; returns their address."""
        return self.keep(np.frombuffer(bytes(struct), dtype=np.uint8))

    def keep_floats(self, vector: AnyArray | None) -> int | None:
        """Keeps a vector as float32, padded as rows are; returns its address, or None for none."""
        if vector is None:
            return None
        return self.keep(np.pad(to_float32(vector), (0, -len(vector) % PANEL)))

    def keep_bias(self, bias: AnyArray, *, interleaved: bool) -> int:
        """Keeps a bias, or that of each expert, as the columns of packed weights lie; returns its
        address."""
        parts, size = (2, PANEL // 2) if interleaved else (1, PANEL)
        halves = to_float32(bias).reshape(-1, parts, bias.shape[-1] // parts)
        padded = np.pad(halves, ((0, 0), (0, 0), (0, -halves.shape[2] % size)))
        return self.keep(padded.reshape(len(halves), parts, -1, size).swapaxes(1, 2))

    def keep_order(self, order: NDArray[np.int32]) -> int:
        """Keeps an order of columns, with the padding of rows, which stays where it is; returns its
        address."""
        width = len(order)
        padding = np.arange(width, -(-width // PANEL) * PANEL)
        return self.keep(np.concatenate([order, padding]).astype(np.int32))

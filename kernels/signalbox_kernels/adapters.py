"""LoRA adapters in the form in which native programs read them.

A program multiplies some matrices at once, such as gate and up. An adapter has a part for each of
them, and csrc/program/api.h (SbAdapter) describes how the parts lie.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray, to_bfloat16
from signalbox_kernels.structs import PANEL, Element, SbAdapter

_HALF = 16  # packed columns that belong to one part
_ALIGNMENT = 64


class LoraPair(NamedTuple):
    """The factors of the term that an adapter adds to a matrix's product: x @ a.T @ b.T."""

    a: NDArray[np.float32]
    """[r, in_features]."""
    b: NDArray[np.float32]
    """[out_features, r], with the adapter's scale in it."""


@dataclass(frozen=True, slots=True)
class PackedPairs:
    """The parts of one adapter at one site."""

    a: AnyArray
    b: AnyArray
    r: int
    columns: int

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    def as_struct(self) -> SbAdapter:
        return SbAdapter(self.a.ctypes.data, self.b.ctypes.data, self.columns, self.r)


@dataclass(frozen=True, slots=True)
class AdapterSite:
    """A product that adapters may change."""

    modules: tuple[str, ...]
    """Names of the matrices that it multiplies at once."""
    num_rows: tuple[int, ...]
    """Rows of each; multiples of 16 but for the last, unless the matrices are interleaved."""
    depth: int
    """Columns of all of them."""
    is_interleaved: bool = False
    """True if it packs 16 rows of each of two matrices in turn, as for GATED."""

    @property
    def parts(self) -> NDArray[np.uint8]:
        """The part of each 16 packed columns, padded to whole panels."""
        halves = [-(-rows // _HALF) for rows in self.num_rows]
        parts = np.repeat(np.arange(len(halves), dtype=np.uint8), halves)
        if self.is_interleaved:
            return np.ascontiguousarray(parts.reshape(len(halves), -1).T).reshape(-1)
        return np.pad(parts, (0, len(parts) % 2), mode="edge")

    def pack(self, of_modules: Mapping[str, LoraPair], element: Element) -> PackedPairs | None:
        """Packs what an adapter has of each part, by module; None if it has nothing."""
        pairs = [of_modules.get(module) for module in self.modules]
        found = [pair for pair in pairs if pair is not None]
        if not found:
            return None
        r = _even(max(len(pair.a) for pair in found))
        a = np.zeros((len(pairs), r, self.depth), dtype=np.float32)
        b = [np.zeros((-(-rows // _HALF) * _HALF, r), np.float32) for rows in self.num_rows]
        for part, pair in enumerate(pairs):
            if pair is not None:
                a[part, : len(pair.a)] = pair.a
                b[part][: len(pair.b), : len(pair.a)] = pair.b
        columns = len(pairs) * r
        left = np.pad(a.reshape(columns, -1), ((0, -columns % _HALF), (0, -self.depth % PANEL)))
        packed_a = _pack(left.reshape(-1, _HALF, left.shape[1]), element)
        return PackedPairs(packed_a, _pack(self._in_packed_order(b), element), r, columns)

    def num_bytes(self, r: int, element: Element) -> int:
        """Returns the bytes that `pack` makes of pairs whose largest r is given."""
        if not r:
            return 0
        columns = len(self.modules) * _even(r)
        of_a = _padded(columns, _HALF) * _padded(self.depth, PANEL)
        of_b = _HALF * len(self.parts) * _even(r)
        size = 2 if element is Element.BFLOAT16 else 4
        return size * (of_a + of_b) + 2 * _ALIGNMENT

    def _in_packed_order(self, parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Returns [halves, 16, r]."""
        r = parts[0].shape[1]
        if self.is_interleaved:
            halves = np.stack([part.reshape(-1, _HALF, r) for part in parts], axis=1)
            return halves.reshape(-1, _HALF, r)
        halves = np.concatenate(parts).reshape(-1, _HALF, r)
        return np.pad(halves, ((0, len(halves) % 2), (0, 0), (0, 0)))


def _even(r: int) -> int:
    return _padded(r, 2)


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _pack(halves: NDArray[np.float32], element: Element) -> AnyArray:
    """Packs [halves, 16, depth] as depth steps of 16, of pairs of steps in bfloat16."""
    num, width, depth = halves.shape
    if element is Element.BFLOAT16:
        values = to_bfloat16(halves).view(np.uint16).reshape(num, width, depth // 2, 2)
        ordered: AnyArray = values.transpose(0, 2, 1, 3)
    else:
        ordered = halves.transpose(0, 2, 1)
    packed = _aligned(ordered.nbytes)
    packed[:] = np.ascontiguousarray(ordered).reshape(-1).view(np.uint8)
    return packed


def _aligned(num_bytes: int) -> NDArray[np.uint8]:
    """Returns zeroed bytes at the start of a cache line."""
    memory = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes]

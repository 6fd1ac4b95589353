"""Matrices are packed by threads in parts of some rows, and the bytes are those of one part."""

import ctypes
import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from signalbox_kernels import arena, packed_file, pages
from signalbox_kernels.arena import Arena, PackedMismatch
from signalbox_kernels.native import library
from signalbox_kernels.storage import Storage, StoredMatrix
from tests.kernels.native.matrices import make_stored
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


def make_parts(matrix: StoredMatrix) -> StoredMatrix:
    """The same matrix, which cannot be read whole."""
    blocks = matrix.blocks

    def whole() -> NDArray[np.uint8]:
        raise AssertionError("it is read whole")

    return replace(matrix, read=whole, read_rows=lambda start, end: blocks[start:end])


def packed_at_once(matrix: StoredMatrix, *, interleaved: bool) -> bytes:
    (rows, columns), blocks = matrix.shape, matrix.blocks
    size = library().sb_packed_bytes(matrix.type, rows, columns, interleaved)
    into = pages.empty((size + 64,), np.dtype(np.uint8))
    source = blocks.ctypes.data, blocks.strides[0]
    library().sb_pack(matrix.type, *source, rows, columns, interleaved, into.ctypes.data)
    return into[:size].tobytes()


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", Storage)
def test_parts_have_the_bytes_of_the_whole(
    kind: Storage, interleaved: bool, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "_PART_BYTES", 1)  # one panel each
    experts = [make_stored(kind, 150, 512, seed=seed) for seed in range(3)]
    if is_whole:
        experts = [replace(expert, read_rows=None) for expert in experts]
    given = experts if is_whole else [make_parts(expert) for expert in experts]
    memory = Arena(num_threads=3)
    packed = memory.pack_all(given, len(given), interleaved=interleaved)
    memory.finish()
    expected = b"".join(packed_at_once(one, interleaved=interleaved) for one in experts)
    assert ctypes.string_at(packed.address, len(expected)) == expected


def test_a_part_that_cannot_be_read_ends_the_packing() -> None:
    def fails(start: int, end: int) -> NDArray[np.uint8]:
        raise OSError("gone")

    memory = Arena(num_threads=2)
    memory.pack(replace(make_stored(Storage.F32, 64, 64), read_rows=fails))
    with pytest.raises(OSError, match="gone"):
        memory.finish()


def test_memory_that_is_given_up_stays_while_a_part_is_packed() -> None:
    """As where a later tensor of the model is missing."""
    is_read, go_on = threading.Event(), threading.Event()

    def read(start: int, end: int) -> NDArray[np.uint8]:
        is_read.set()
        assert go_on.wait(60)
        return matrix.blocks[start:end]

    matrix = make_stored(Storage.F32, 64, 64)
    memory = Arena(num_threads=2)
    memory.pack(replace(matrix, read_rows=read))
    assert is_read.wait(60)
    part, memory_of = memory._waiting[0], weakref.ref(memory)
    del memory
    gc.collect()
    assert memory_of() is not None
    go_on.set()
    assert part.result(60) is None


@pytest.mark.parametrize("may_copy", [True, False])
def test_a_file_has_the_bytes_of_memory(
    may_copy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_file, "_CHUNK", 1000)
    monkeypatch.setattr(packed_file, "_is_on_huge_pages", lambda memory: False)
    memory, matrices = Arena(), [make_stored(Storage.Q4_K, 70, 512), make_stored(Storage.F16, 9, 7)]
    for matrix in matrices:
        memory.pack(matrix)
    packed_file.write_packed(tmp_path / "x", memory, {"about": np.arange(3)})
    found = packed_file.open_packed(tmp_path / "x", num_threads=2, may_copy=may_copy)
    assert found.is_mapped is not may_copy
    assert found.about["about"].tolist() == [0, 1, 2]
    again = Arena(before=found)
    for matrix in matrices:
        again.pack(replace(matrix, read=lambda: pytest.fail("it is packed"), read_rows=None))
    for before, after in zip(memory.packed, again.packed, strict=True):
        assert before.form == after.form
        expected = ctypes.string_at(before.address, before.num_bytes)
        assert ctypes.string_at(after.address, after.num_bytes) == expected
    with pytest.raises(PackedMismatch):
        again.pack(matrices[0])


@pytest.fixture
def spare() -> Iterator[None]:
    pages.forget_parts()
    yield
    pages.forget_parts()


@pytest.mark.usefixtures("spare")
def test_memory_of_a_part_is_used_again_when_nothing_refers_to_it() -> None:
    first = pages.part(100)
    view = first.reshape(10, 10)[2:].view(np.int8)
    address = first.ctypes.data
    del first
    assert pages.part(100).ctypes.data != address
    del view
    assert address in {part.ctypes.data for part in (pages.part(100), pages.part(1 << 22))}

"""A pool gets its pages while the worker idles, and keeps what is in it."""

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.kv_cache import page_prefault
from gpu_worker.kv_cache.cache_engine import CacheEngine
from gpu_worker.kv_cache.page_prefault import PoolPages
from tests.gpu_worker.kv_cache.deferred_streams import make_engine

MIB = 1 << 20
NUM_BYTES = 64 * MIB

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="pages are populated on Linux alone"
)


@pytest.fixture(autouse=True)
def a_machine_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_prefault, "available_ram", lambda: 1 << 40)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def resident_share(pool: torch.Tensor) -> float:
    """Of the pool's own pages: those of the process may be ones that malloc has kept for it."""
    first = -(-pool.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    num_pages = (pool.data_ptr() + pool.nbytes - first) // mmap.PAGESIZE
    found = (ctypes.c_ubyte * num_pages)()
    size = ctypes.c_size_t(num_pages * mmap.PAGESIZE)
    assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(first), size, found)
    return sum(byte & 1 for byte in found) / num_pages


def make_cache() -> CacheEngine:
    return make_engine(num_gpu_blocks=64, num_cpu_blocks=0, block_bytes=MIB)


def test_a_pool_is_resident_once_it_has_settled_and_keeps_its_content() -> None:
    cache = make_cache()
    cache.gpu_pool[3] = 7
    while cache.prefault():
        pass
    assert resident_share(cache.gpu_pool) > 0.9
    assert (cache.gpu_pool[3] == 7).all()
    assert not cache.gpu_pool[4:].any()
    cache.close()


def test_where_ram_is_short_the_pool_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_prefault, "available_ram", lambda: NUM_BYTES)
    cache = make_cache()
    before = resident_bytes()
    assert not cache.prefault()
    assert resident_bytes() - before < NUM_BYTES // 2
    cache.close()


def test_a_system_that_cannot_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_prefault, "populate", lambda *_, **__: False)
    pages = PoolPages(torch.from_numpy(np.zeros((4, MIB), dtype=np.uint8)))
    assert not pages.prefault()

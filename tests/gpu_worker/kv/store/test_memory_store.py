"""A store in RAM keeps the blocks that were used last."""

from signalbox_worker.kv.store.memory_store import MemoryStore
from tests.gpu_worker.kv.store.stores import BLOCK_BYTES, content_of, filled, key_of, keys_of


def test_the_block_that_was_used_longest_ago_makes_room() -> None:
    store = filled(MemoryStore(block_bytes=BLOCK_BYTES, num_blocks=2), 1, 2)
    into = bytearray(BLOCK_BYTES)
    assert store.read(key_of(1), memoryview(into))
    filled(store, 3)
    assert bytes(into) == content_of(1)
    assert [store.find(keys_of(n)) for n in (1, 2, 3)] == [1, 0, 1]
    usage = store.usage()
    assert (usage.num_blocks, usage.used_bytes) == (2, 2 * BLOCK_BYTES)
    assert (usage.capacity_bytes, usage.num_evicted) == (2 * BLOCK_BYTES, 1)


def test_clearing_a_tenant_leaves_the_others() -> None:
    store = MemoryStore(block_bytes=BLOCK_BYTES, num_blocks=4)
    filled(store, 1, 2, tenant=b"a")
    filled(store, 3, tenant=b"b")
    store.clear(b"a")
    assert [store.find(keys_of(n)) for n in (1, 2, 3)] == [0, 0, 1]
    store.clear(None)
    assert store.usage().num_blocks == 0


def test_blocks_outlive_the_worker_that_closes_the_store() -> None:
    store = filled(MemoryStore(block_bytes=BLOCK_BYTES, num_blocks=4), 1)
    store.close()
    assert store.find(keys_of(1)) == 1

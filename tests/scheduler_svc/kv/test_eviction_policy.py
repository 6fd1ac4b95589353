"""A pool evicts the block that its policy chooses, and the least recently used without one."""

from collections.abc import Mapping

from signalbox_contract.cache_groups import FULL_GROUP
from signalbox_scheduler.kv.eviction_policy import EvictionPolicy
from signalbox_scheduler.requests.sequence_group import Sequence
from tests.scheduler_svc.kv.test_cache_groups import BLOCK_SIZE, computed, make_blocks


class MostRecent(EvictionPolicy):
    """Notes the tables of sequences that end."""

    def __init__(self) -> None:
        self.freed: list[list[int]] = []

    def note_freed(self, seq: Sequence) -> None:
        self.freed.append(list(seq.block_table))

    def choose(self, cached: Mapping[int, None], block_of: Mapping[bytes, int]) -> int:
        assert cached.keys() <= {*block_of.values()}
        return next(reversed([*cached]))


def test_a_pool_evicts_what_its_policy_chooses() -> None:
    blocks = make_blocks((FULL_GROUP,), num_gpu_blocks=8)
    blocks.gpu.eviction = policy = MostRecent()
    first, second = (computed(blocks, 3 * BLOCK_SIZE, kind=kind) for kind in (1, 2))
    tables = [list(seq.block_table) for seq in (first, second)]
    for seq in (first, second):
        blocks.free(seq)
    assert policy.freed == tables
    third = computed(blocks, 5 * BLOCK_SIZE, kind=3)
    assert all(blocks.gpu.is_cached(block) for block in tables[0])
    assert third.block_table[2:] == list(tables[1])
    blocks.check([third])


def test_blocks_that_no_request_is_likely_to_want_go_before_a_policy_is_asked() -> None:
    blocks = make_blocks((FULL_GROUP,), num_gpu_blocks=5)
    blocks.gpu.eviction = MostRecent()
    first = computed(blocks, 4 * BLOCK_SIZE + 1)
    table = list(first.block_table)
    blocks.free(first)
    blocks.gpu.touch(table[2], evict_first=True)
    assert computed(blocks, 2 * BLOCK_SIZE, kind=2).block_table == [table[4], table[2]]

"""Blocks are moved between the pools of a CPU as the sections of a step say."""

import numpy as np
import pytest

from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_worker.kv.cache.block_pools import BlockPools
from tests.gpu_worker.builders import make_mapping, make_step


def make_pools() -> BlockPools:
    """Block i of the first pool holds i + 1 in each byte; the other pool is empty."""
    pools = BlockPools(num_gpu_blocks=6, num_cpu_blocks=3, block_bytes=40)
    pools.gpu_pool[:] = np.arange(1, 7, dtype=np.uint8)[:, None]
    return pools


def contents(pool: np.ndarray) -> list[int]:
    """Returns the byte that each block consists of."""
    assert (pool == pool[:, :1]).all()
    return [int(block) for block in pool[:, 0]]


def test_blocks_go_out_before_others_come_in_and_copies_come_last() -> None:
    pools = make_pools()
    pools.cpu_pool[0] = 90
    step = make_step(
        swap_out=make_mapping({1: 2, 3: 1}),
        swap_in=make_mapping({0: 1, 2: 5}),  # block 2 has just gone out
        copy=make_mapping({1: 0, 5: 4}),  # and these have just come in
    )
    assert pools.apply(step) > 0
    assert contents(pools.gpu_pool) == [90, 90, 3, 4, 2, 2]
    assert contents(pools.cpu_pool) == [90, 4, 2]


def test_a_block_may_be_copied_to_several() -> None:
    pools = make_pools()
    mapping = BlockMapping(np.zeros(2, np.int32), np.array([1, 2], np.int32))
    pools.apply(make_step(copy=mapping))
    assert contents(pools.gpu_pool) == [1, 1, 1, 4, 5, 6]


def test_a_step_without_moves_changes_nothing() -> None:
    pools = make_pools()
    pools.apply(make_step())
    assert contents(pools.gpu_pool) == [1, 2, 3, 4, 5, 6]


def test_a_cache_of_no_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPools(num_gpu_blocks=0, num_cpu_blocks=0, block_bytes=40)

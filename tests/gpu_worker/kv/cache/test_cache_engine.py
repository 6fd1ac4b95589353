"""Blocks keep their bytes wherever they are moved."""

import gc

import pytest
import torch

from signalbox_contract.sections.block_moves import NO_MOVES
from tests.gpu_worker.builders import make_mapping
from tests.gpu_worker.kv.cache.deferred_streams import DeferredStreams, make_engine


def test_pools_are_zero_at_first() -> None:
    engine = make_engine()
    assert not engine.gpu_pool.any()
    assert not engine.cpu_pool.any()


def test_swapped_blocks_come_back_bit_for_bit() -> None:
    engine = make_engine()
    engine.gpu_pool.random_(0, 256)
    before = engine.gpu_pool.clone()

    engine.swap_out(make_mapping({2: 0, 3: 1, 7: 3}))
    engine.gpu_pool[[2, 3, 7]] = 255
    engine.swap_in(make_mapping({0: 5, 3: 2, 1: 6}))

    assert torch.equal(engine.gpu_pool[[5, 6, 2]], before[[2, 3, 7]])
    assert torch.equal(engine.gpu_pool[[0, 1, 4]], before[[0, 1, 4]])
    assert torch.equal(engine.cpu_pool[[0, 1, 3]], before[[2, 3, 7]])
    assert not engine.cpu_pool[2].any()


def test_copy_duplicates_a_block_within_the_pool() -> None:
    engine = make_engine()
    engine.gpu_pool.random_(0, 256)
    before = engine.gpu_pool.clone()
    engine.copy(make_mapping({1: 4, 2: 5, 6: 0}))
    assert torch.equal(engine.gpu_pool, before[[6, 1, 2, 3, 1, 2, 6, 7]])


def test_an_engine_that_nobody_closes_ends_its_copies_and_then_its_pinning() -> None:
    streams = DeferredStreams()
    engine = make_engine(streams)
    engine.gpu_pool.fill_(7)
    swapped = engine.cpu_pool
    engine.swap_out(make_mapping({0: 1}))
    assert len(streams.pinned) == 1
    del engine
    gc.collect()
    assert swapped[1].eq(7).all()
    assert not streams.pinned  # or the address could never be pinned again


def test_empty_mapping_and_empty_swap_space_do_nothing() -> None:
    engine = make_engine(num_cpu_blocks=0)
    engine.swap_out(NO_MOVES.swap_out)
    engine.swap_in(NO_MOVES.swap_in)
    engine.copy(NO_MOVES.copy)
    assert engine.cpu_pool.shape == (0, 96)


def test_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        make_engine(num_gpu_blocks=0)

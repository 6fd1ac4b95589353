"""Swap on a card: the bytes, the order, the overlap, and the memory that it takes."""

import numpy as np
import pytest
import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.parts import probes
from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_worker.device.device_choice import streams_of
from signalbox_worker.device.streams import Streams
from signalbox_worker.kv.cache.block_dependencies import BlockUse
from signalbox_worker.kv.cache.cache_engine import CacheEngine

CUDA = torch.device("cuda")
CYCLES = 2_000_000_000
"""Of a kernel that does nothing for about a second."""


def make_engine(streams: Streams | None = None, *, block_bytes: int = 1 << 20) -> CacheEngine:
    return CacheEngine(
        num_gpu_blocks=64,
        num_cpu_blocks=32,
        block_bytes=block_bytes,
        device=CUDA,
        streams=streams or streams_of(CUDA),
    )


def make_mapping(src: list[int], dst: list[int]) -> BlockMapping:
    return BlockMapping(np.array(src, dtype=np.int32), np.array(dst, dtype=np.int32))


def test_swap_between_device_and_pinned_memory_keeps_the_bytes() -> None:
    engine = make_engine(block_bytes=4096)
    engine.gpu_pool.random_(0, 256)
    before = engine.gpu_pool.cpu()
    order, in_a_row = np.random.default_rng(0).permutation(64)[:32].tolist(), list(range(32))
    engine.swap_out(make_mapping(order, in_a_row))
    with engine.computing(lambda: BlockUse(reads=np.array([]), writes=np.arange(64))):
        engine.gpu_pool.zero_()
    engine.swap_in(make_mapping(in_a_row, order))
    engine.close()
    assert torch.equal(engine.gpu_pool.cpu()[torch.tensor(order)], before[torch.tensor(order)])


def test_the_swap_pool_is_pinned_until_it_is_closed() -> None:
    engine = make_engine(block_bytes=1000)
    assert engine.cpu_pool.is_pinned()
    assert not engine.cpu_pool.any()
    engine.close()
    assert not engine.cpu_pool.is_pinned()
    torch.cuda.synchronize()  # no error is left behind


def test_a_swap_of_other_blocks_ends_while_a_pass_goes_on() -> None:
    streams = streams_of(CUDA)
    engine = make_engine(streams)
    torch.cuda.synchronize()
    with engine.computing(lambda: BlockUse(reads=np.array([0]), writes=np.array([1]))):
        streams.compute.run(lambda: torch.cuda._sleep(CYCLES))
    computed = streams.compute.record()
    engine.swap_out(make_mapping([2, 3, 40], [0, 1, 2]))
    assert engine.pop_copy_ns() > 0  # which waits for the first copy
    assert not computed.is_done
    engine.close()


def test_a_swap_of_its_blocks_waits_for_a_pass() -> None:
    streams = streams_of(CUDA)
    engine = make_engine(streams)

    def fill_late() -> None:
        torch.cuda._sleep(CYCLES)
        engine.gpu_pool[1] = 7

    with engine.computing(lambda: BlockUse(reads=np.array([0]), writes=np.array([1]))):
        streams.compute.run(fill_late)
    engine.swap_out(make_mapping([1], [0]))
    engine.close()
    assert (engine.cpu_pool[0] == 7).all()


@pytest.mark.parametrize("probe", ["_strided_views", "_far_offsets", "_event_order"])
def test_what_the_design_takes_for_granted_holds(probe: str, tmp_path: object) -> None:
    bench = Bench(device=CUDA, tiny=False, folder=tmp_path)  # type: ignore[arg-type]
    probes.use_kernels(bench)
    found = getattr(probes, probe)(bench)
    assert found.value == 1.0, found.note

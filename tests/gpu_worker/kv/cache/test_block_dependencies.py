"""Swaps beside the forward pass: whatever the device does first, each block has its bytes."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_worker.device.streams import HostStreams, Streams
from signalbox_worker.kv.cache.block_dependencies import BlockUse, blocks_of
from signalbox_worker.kv.cache.cache_engine import CacheEngine, CopyClock
from tests.gpu_worker.builders import make_mapping, make_new, make_runner, make_step, make_table
from tests.gpu_worker.kv.cache.deferred_streams import DeferredStream, DeferredStreams, make_engine

NUM_GPU, NUM_CPU = 10, 6
SIZES = {"num_gpu_blocks": NUM_GPU, "num_cpu_blocks": NUM_CPU, "block_bytes": 8}


def compute(engine: CacheEngine, streams: Streams, reads: list[int], writes: list[int]) -> None:
    """A pass that writes a hash of what it reads, and of what it overwrites, to each block."""
    blocks = torch.tensor(sorted({*reads, *writes}))

    def work() -> None:
        weights = torch.arange(1, 8 * len(blocks) + 1)
        seen = int((engine.gpu_pool[blocks].flatten().long() * weights).sum())
        for block in writes:
            engine.gpu_pool[block] = (seen * 31 + block * 7 + 1) % 251

    use = BlockUse(reads=np.array(reads, dtype=np.int64), writes=np.array(writes, dtype=np.int64))
    with engine.computing(lambda: use):
        streams.compute.run(work)


def random_mapping(random: Random, num_src: int, num_dst: int) -> BlockMapping:
    """Of distinct blocks, some of them neighbours."""
    most = min(num_src, num_dst)
    count = random.choice([0, 0, 1, 2, most])
    src, dst = random.sample(range(num_src), count), random.sample(range(num_dst), count)
    if random.random() < 0.5:
        src.sort()
        dst.sort()
    return make_mapping(dict(zip(src, dst, strict=True)))


def random_copies(random: Random) -> BlockMapping:
    """Sources are no destinations."""
    blocks = random.sample(range(NUM_GPU), NUM_GPU)
    count = random.choice([0, 1, 3])
    return make_mapping(dict(zip(blocks[:count], blocks[count : 2 * count], strict=True)))


def run_steps(streams: Streams, seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Some steps, each as a worker does it: out, in, copy, forward. Returns both pools."""
    random = Random(seed)
    engine = make_engine(streams, **SIZES)
    for _ in range(random.randrange(1, 9)):
        engine.swap_out(random_mapping(random, NUM_GPU, NUM_CPU))
        engine.swap_in(random_mapping(random, NUM_CPU, NUM_GPU))
        engine.copy(random_copies(random))
        for _ in range(random.choice([0, 1, 1, 2])):  # a batch may be computed in parts
            reads = random.sample(range(NUM_GPU), random.randrange(4))
            compute(engine, streams, reads, random.sample(range(NUM_GPU), random.randrange(1, 4)))
        engine.pop_copy_ns()
    if isinstance(streams, DeferredStreams):
        streams.run_all()
    engine.close()
    return engine.gpu_pool.tolist(), engine.cpu_pool.tolist()


@settings(max_examples=150)
@given(seed=st.integers(0, 1 << 32), order=st.integers(0, 1 << 32))
def test_any_order_that_the_events_allow_gives_the_bytes_of_one_after_the_other(
    seed: int, order: int
) -> None:
    assert run_steps(DeferredStreams(Random(order)), seed) == run_steps(HostStreams(), seed)


@pytest.mark.parametrize("deaf", ["compute", "copies"])
def test_the_model_of_a_device_shows_a_wait_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, deaf: str
) -> None:
    waits: Callable[[DeferredStream, object], None] = DeferredStream.wait  # type: ignore[assignment]

    def hear(stream: DeferredStream, event: object) -> None:
        if (stream is stream.streams.compute) is (deaf == "copies"):
            waits(stream, event)

    monkeypatch.setattr(DeferredStream, "wait", hear)
    wrong = [
        seed
        for seed in range(60)
        if run_steps(DeferredStreams(Random(seed)), seed) != run_steps(HostStreams(), seed)
    ]
    assert wrong


def test_a_pass_over_other_blocks_waits_for_no_swap() -> None:
    streams = DeferredStreams()
    engine = make_engine(streams, **SIZES)
    streams.run_all()
    engine.swap_out(make_mapping({0: 0, 1: 1}))
    engine.swap_in(make_mapping({2: 5}))
    compute(engine, streams, [2, 3], [4])
    streams.compute.run_all()
    assert engine.gpu_pool[4].any()
    assert not streams.compute.num_waits
    streams.run_all()


@pytest.mark.parametrize(
    ("reads", "writes"), [([5], [4]), ([], [5]), ([], [0])], ids=["read", "overwrite", "too early"]
)
def test_a_pass_waits_for_the_swap_of_its_blocks(reads: list[int], writes: list[int]) -> None:
    streams = DeferredStreams()
    engine = make_engine(streams, **SIZES)
    streams.run_all()
    engine.swap_out(make_mapping({0: 0}))
    engine.swap_in(make_mapping({2: 5}))
    compute(engine, streams, reads, writes)
    streams.compute.run_all()
    assert not engine.gpu_pool.any()  # it has not begun
    streams.run_all()
    assert engine.gpu_pool[writes[0]].any()
    assert not engine.cpu_pool[0].any()  # what was read is what was there before the pass


def test_a_swap_waits_for_the_pass_that_writes_its_block_and_for_no_other() -> None:
    streams = DeferredStreams()
    engine = make_engine(streams, **SIZES)
    streams.run_all()
    compute(engine, streams, [1], [0])
    compute(engine, streams, [2], [3])
    copying = streams.others[0]
    num_waits = copying.num_waits
    engine.swap_out(make_mapping({1: 0, 4: 1}))  # reading beside a reader is fine
    assert copying.num_waits == num_waits
    engine.swap_out(make_mapping({0: 2}))
    assert copying.num_waits == num_waits + 1
    copying.run_all()
    assert copying.queue
    streams.run_all()
    assert torch.equal(engine.cpu_pool[2], engine.gpu_pool[0])


def test_what_was_never_zeroed_is_not_swapped_over() -> None:
    """The pool's zeroes are written by the device too: the first swap comes after them."""
    streams = DeferredStreams()
    make_engine(streams, **SIZES)
    assert streams.others[0].num_waits == 1
    streams.run_all()


def test_memory_is_pinned_as_large_as_it_is_and_let_go_after_the_last_copy() -> None:
    streams = DeferredStreams()
    engine = make_engine(streams, num_gpu_blocks=1, num_cpu_blocks=3, block_bytes=4096 + 512)
    assert list(streams.pinned.values()) == [4 * 4096]
    engine.swap_in(make_mapping({1: 0}))
    engine.close()
    assert not streams.pinned
    assert not streams.others[0].queue
    engine.close()  # nothing is left to do


def test_copies_that_nobody_waited_for_are_timed_by_those_that_have_ended() -> None:
    streams, clock = DeferredStreams(), CopyClock()
    copying = streams.new()

    def copy(num_bytes: int) -> None:
        begin = copying.record(is_timed=True)
        copying.run(lambda: None)
        clock.add(begin, copying.record(is_timed=True), num_bytes=num_bytes)

    copy(100)
    assert clock.pop_ns() == 2000  # the first one is waited for: two steps of the clock
    copy(50)
    copy(150)
    assert clock.pop_ns() == 4000
    assert clock.pop_ns() == 0
    streams.run_all()
    copy(200)
    assert clock.pop_ns() == round(200 * 2000 / 150)


def test_a_batch_uses_the_blocks_of_its_contexts_and_writes_those_of_its_slots() -> None:
    runner = make_runner(block_size=4)
    table = make_table(runner)
    new = [
        make_new(1, list(range(1, 7)), [3, 4], num_computed_tokens=4, num_new_tokens=2),
        make_new(2, [1, 2], [9]),
    ]
    batch = table.apply(make_step(new=new))
    use = blocks_of(batch, block_size=4)
    assert sorted(use.reads.tolist()) == [3, 4, 9]
    assert sorted(set(use.writes.tolist())) == [4, 9]
    batch.slot_mapping[0] = -1
    assert len(blocks_of(batch, block_size=4).writes) == 3

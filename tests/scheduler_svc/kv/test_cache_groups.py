"""Groups of layers with windows: what is freed, what is found afterwards, and what a pool holds."""

import random

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, NO_BLOCK, CacheGroup
from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_allocator import AllocStatus
from signalbox_scheduler.kv.block_events import BlockRetracted
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.requests.sequence_group import Sequence
from tests.scheduler_svc.make import (
    assert_all_free,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
)

BLOCK_SIZE = 16
STEP_TOKENS = 2048
LENGTHS = (500, 8192)


def window(size: int) -> CacheGroup:
    return CacheGroup(kind="window", window=size)


def make_blocks(
    groups: tuple[CacheGroup, ...],
    *,
    num_gpu_blocks: int,
    num_cpu_blocks: int = 0,
    block_size: int = BLOCK_SIZE,
) -> BlockSpaceManager:
    shape = CacheShape(
        block_size=block_size,
        num_gpu_blocks=num_gpu_blocks,
        num_cpu_blocks=num_cpu_blocks,
        max_model_len=16384,
        groups=groups,
    )
    return BlockSpaceManager(shape, costs=CostModel())


def compute(blocks: BlockSpaceManager, seq: Sequence, num_tokens: int) -> None:
    """Computes tokens of a sequence in steps, as many at a time as there are blocks for."""
    while num_tokens:
        step = blocks.most_new_tokens(seq, min(num_tokens, STEP_TOKENS))
        assert step, "a sequence that was let in does not get on"
        assert blocks.can_append_slots(seq, step) is AllocStatus.OK
        blocks.append_slots(seq, step)
        seq.num_computed_tokens += step
        blocks.cache_blocks(seq)
        num_tokens -= step


def begin(blocks: BlockSpaceManager, num_tokens: int, *, kind: int = 1) -> Sequence | None:
    """Computes a prompt, if there is room for it now."""
    group = make_request([kind] * num_tokens, max_tokens=8)
    if blocks.can_allocate(group) is not AllocStatus.OK:
        return None
    (seq,) = group.sequences
    prefix = blocks.find_prefix(seq)
    seq.num_computed_tokens = blocks.num_tokens(len(prefix))
    blocks.start(seq, prefix)
    compute(blocks, seq, num_tokens - seq.num_computed_tokens)
    return seq


def computed(blocks: BlockSpaceManager, num_tokens: int, *, kind: int = 1) -> Sequence:
    seq = begin(blocks, num_tokens, kind=kind)
    assert seq is not None
    return seq


def rows_kept(blocks: BlockSpaceManager, seq: Sequence, column: int) -> list[int]:
    entries = seq.block_table[column :: blocks.num_groups]
    return [row for row, block in enumerate(entries) if block != NO_BLOCK]


def test_blocks_behind_a_window_are_freed_while_a_sequence_runs() -> None:
    blocks = make_blocks((FULL_GROUP, window(9)), num_gpu_blocks=40, block_size=4)
    seq = computed(blocks, 30)
    assert rows_kept(blocks, seq, 0) == list(range(8))
    assert rows_kept(blocks, seq, 1) == [5, 6, 7]  # the next token sees those from 22 on
    blocks.check([seq])
    for _ in range(6):
        seq.output_token_ids.append(1)
        compute(blocks, seq, 1)
        blocks.check([seq])
    assert rows_kept(blocks, seq, 1) == [7, 8]
    blocks.free(seq)
    blocks.check([])
    assert blocks.gpu.num_free == 40


def test_steps_in_flight_keep_what_they_may_read() -> None:
    """Blocks are freed behind what is accepted, not behind what is planned."""
    blocks = make_blocks((window(5),), num_gpu_blocks=40, block_size=4)
    seq = computed(blocks, 20)
    kept = held(seq.block_table)
    seq.output_token_ids += [1] * 9
    blocks.append_slots(seq, 9)
    seq.num_inflight_tokens = 9
    blocks.cache_blocks(seq)
    assert held(seq.block_table)[: len(kept)] == kept
    seq.num_inflight_tokens, seq.num_computed_tokens = 0, 29
    blocks.cache_blocks(seq)
    assert rows_kept(blocks, seq, 0) == [6, 7]


@pytest.mark.parametrize("num_more", [1, 40])
def test_a_prefix_is_found_after_its_blocks_were_freed(num_more: int) -> None:
    blocks = make_blocks((FULL_GROUP, window(9), window(6)), num_gpu_blocks=200, block_size=4)
    seq = computed(blocks, 22)
    compute(blocks, seq, 0)
    seq.output_token_ids += [1] * num_more
    compute(blocks, seq, num_more)
    assert rows_kept(blocks, seq, 1)[0] > 1
    (other,) = make_request([1] * 22 + [2] * 9).sequences
    prefix = blocks.find_prefix(other)
    assert blocks.num_tokens(len(prefix)) == 20
    needed = [[found.block != NO_BLOCK for found in prefix[column::3]] for column in range(3)]
    assert needed == [[True] * 5, [False] * 3 + [True] * 2, [False] * 3 + [True] * 2]
    other.num_computed_tokens = 20
    blocks.start(other, prefix)
    compute(blocks, other, 11)
    blocks.check([seq, other])


def test_a_prefix_ends_where_each_group_has_what_the_next_token_sees() -> None:
    blocks = make_blocks((FULL_GROUP, window(9)), num_gpu_blocks=100, block_size=4)
    seq = computed(blocks, 41)
    blocks.free(seq)
    for row, num_found in ((9, 36), (4, 36), (8, 32), (7, 28), (0, 28), (5, 16)):
        name = blocks.prefix_hashes(seq, row * 2 + 1, row * 2 + 2)[0]
        block = blocks.gpu.find(name)
        assert block is not None
        blocks.gpu.retract(block)
        (other,) = make_request([1] * 41).sequences
        assert blocks.num_tokens(len(blocks.find_prefix(other))) == num_found
    assert blocks.estimate_prefix(other) == 10  # it looks at the full group


@pytest.mark.parametrize(
    "groups", [(FULL_GROUP, window(9)), (FULL_GROUP, CacheGroup(kind="state", state_blocks=2))]
)
def test_nothing_is_found_of_what_a_sequence_that_went_wrong_has_given_up(
    groups: tuple[CacheGroup, ...],
) -> None:
    blocks = make_blocks(groups, num_gpu_blocks=100, block_size=4)
    blocks.records_events = True
    seq = computed(blocks, 41)
    for _ in range(8):
        seq.is_on_worker = True
        seq.output_token_ids.append(1)
        compute(blocks, seq, 1)
    names = blocks.prefix_hashes(seq, 0, 12 * len(groups))
    known = {name for name in names if blocks.gpu.find(name) is not None}
    blocks.retract(seq)
    events = blocks.take_events()
    assert known <= {one.block_hash for one in events if isinstance(one, BlockRetracted)}
    blocks.free(seq)
    assert not [name for name in names if blocks.gpu.find(name) is not None]
    blocks.check([])


def test_a_worker_of_windows_alone_finds_what_its_next_token_sees() -> None:
    blocks = make_blocks((window(9),), num_gpu_blocks=8, block_size=4)
    seq = computed(blocks, 37)
    blocks.free(seq)
    (other,) = make_request([1] * 37).sequences
    found = blocks.find_prefix(other)
    assert blocks.num_tokens(len(found)) == 36
    assert [one.block != NO_BLOCK for one in found] == [False] * 7 + [True] * 2
    assert blocks.estimate_prefix(other) == 9


def num_held(groups: tuple[CacheGroup, ...], *, num_gpu_blocks: int) -> int:
    """Returns how many decoding sequences of 8,192 tokens a pool holds."""
    blocks = make_blocks(groups, num_gpu_blocks=num_gpu_blocks)
    seqs = []
    while (seq := begin(blocks, 8191, kind=len(seqs) + 1)) is not None:
        seqs.append(seq)
    blocks.check(seqs)
    return len(seqs)


@pytest.mark.parametrize(("size", "most"), [(512, 4.0), (1024, 3.2)])
def test_windows_in_five_of_six_layers_hold_more_sequences(size: int, most: float) -> None:
    rows = 10 * 8192 // BLOCK_SIZE
    before = num_held((FULL_GROUP,), num_gpu_blocks=rows)
    after = num_held((FULL_GROUP, *[window(size)] * 5), num_gpu_blocks=6 * rows)
    assert after >= most * before


@pytest.mark.parametrize(
    "others",
    [[window(512)] * 5, [CacheGroup(kind="state", state_blocks=96)]],
    ids=["windows", "states"],
)
@pytest.mark.parametrize("seed", range(5))
def test_any_mix_of_lengths_uses_the_pool(seed: int, others: list[CacheGroup]) -> None:
    blocks = make_blocks((FULL_GROUP, *others), num_gpu_blocks=12_000)
    draws, seqs, is_full = random.Random(seed), [], False
    share = draws.choice([0.1, 0.5, 0.9])
    while not is_full:
        first = LENGTHS[draws.random() < share]
        for length in (first, sum(LENGTHS) - first):
            seq = begin(blocks, length, kind=len(seqs) + 1)
            if is_full := seq is None:
                continue
            seqs.append(seq)
            break
    assert blocks.gpu.share_in_use >= 0.9
    blocks.check(seqs)


def test_bounds_of_a_group_count_what_windows_keep() -> None:
    blocks = make_blocks((FULL_GROUP, window(512)), num_gpu_blocks=1000)
    sizes = blocks.sizes
    alone = make_request([1] * 100, max_tokens=15_000)
    assert sizes.most_blocks(alone) == -(-15_099 // 16) + 33
    assert sizes.can_ever_hold(alone)
    assert sizes.most_new_tokens(alone) == 967 * 16 + 1 - 100
    assert sizes.longest_alone == 967 * 16 + 1
    assert not sizes.can_ever_hold(make_request([1] * 100, max_tokens=15_000, n=2))


@pytest.mark.parametrize("depth", [1, 3])
def test_a_prompt_longer_than_the_pool_of_its_windows_is_computed(depth: int) -> None:
    groups = (FULL_GROUP, window(8), window(8))
    scheduler = make_scheduler(num_gpu_blocks=32, groups=groups, max_num_batched_tokens=64)
    loop = make_loop(scheduler, depth=depth)
    group = make_request(list(range(1, 90)), max_tokens=6)
    assert scheduler.blocks.sizes.most_blocks(group) <= 32 < 3 * 23
    scheduler.admission.add(group)
    loop.run()
    assert [len(one) for one in outputs(group)] == [6]
    assert group.failure is None


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_prompt_that_fills_the_pool_goes_on_once_its_step_is_answered(depth: int) -> None:
    """What is behind the window then is freed; the step that draws next is planned before."""
    scheduler = make_scheduler(num_gpu_blocks=8, groups=(FULL_GROUP, window(4)))
    loop = make_loop(scheduler, depth=depth)
    group = make_request([1] * 16, max_tokens=4)
    scheduler.admission.add(group)
    loop.run()
    assert group.failure is None
    assert [len(one) for one in outputs(group)] == [4]
    assert_all_free(loop)

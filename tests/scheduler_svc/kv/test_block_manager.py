"""Groups that may have blocks now, later or never; and what moves when a group is swapped."""

import pytest

from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_allocator import AllocStatus, BlockCopy
from signalbox_scheduler.kv.block_manager import (
    BlockRetracted,
    BlockSpaceManager,
    PrefixFound,
    SequenceFreed,
)
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.kv.prefix_cache import FoundBlock
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup, SequenceStatus
from signalbox_scheduler.requests.sequence_ids import next_seq_id
from tests.scheduler_svc.fake_worker import copies_of
from tests.scheduler_svc.make import make_request


def make_blocks(
    *,
    num_gpu_blocks: int = 8,
    num_cpu_blocks: int = 8,
    watermark: float = 0.0,
    prefix_caching: bool = True,
    cpu_prefix_cache: bool = True,
    costs: CostModel | None = None,
) -> BlockSpaceManager:
    shape = CacheShape(
        block_size=4,
        num_gpu_blocks=num_gpu_blocks,
        num_cpu_blocks=num_cpu_blocks,
        watermark=watermark,
        max_model_len=128,
        prefix_caching=prefix_caching,
        cpu_prefix_cache=cpu_prefix_cache,
    )
    return BlockSpaceManager(shape, costs=costs or CostModel())


def start(
    blocks: BlockSpaceManager, *, prompt_len: int, n: int = 1, kind: int = 1
) -> SequenceGroup:
    """A group whose prompt is computed and whose branches have been split off."""
    group = make_request([kind] * prompt_len, max_tokens=8, n=n)
    (seq,) = group.sequences
    prefix = blocks.find_prefix(seq)
    seq.num_computed_tokens = len(prefix) * blocks.block_size
    blocks.start(seq, prefix)
    seq.num_computed_tokens = prompt_len
    blocks.cache_blocks(seq)
    for branch in range(1, n):
        child = Sequence(
            seq_id=next_seq_id(), branch=branch, group=group, num_computed_tokens=prompt_len
        )
        blocks.fork(seq, child)
        group.sequences.append(child)
    group.set_status(SequenceStatus.RUNNING)
    for each in group.sequences:
        each.output_token_ids.append(5 + each.branch)
    return group


def swap_out(blocks: BlockSpaceManager, group: SequenceGroup) -> list[BlockCopy]:
    blocks.swaps.swap_out(group)
    group.set_status(SequenceStatus.SWAPPED)
    return copies_of(blocks.copies.finish_plan().swap_out)


def swap_in(blocks: BlockSpaceManager, group: SequenceGroup) -> list[BlockCopy]:
    blocks.swaps.swap_in(group)
    group.set_status(SequenceStatus.RUNNING)
    return copies_of(blocks.copies.finish_plan().swap_in)


@pytest.mark.parametrize(
    ("num_used", "num_watermark_blocks", "prompt_len", "status"),
    [
        (0, 0, 24, AllocStatus.OK),  # 6 of 8 blocks, 8 at its longest
        (0, 0, 25, AllocStatus.OK),
        (0, 0, 26, AllocStatus.NEVER),  # 9 at its longest
        (2, 0, 24, AllocStatus.OK),
        (3, 0, 24, AllocStatus.LATER),
        (1, 1, 24, AllocStatus.OK),
        (2, 1, 24, AllocStatus.LATER),
        (0, 3, 24, AllocStatus.OK),  # alone the watermark protects no group
    ],
)
def test_admission_leaves_the_watermark_free_unless_nobody_runs(
    num_used: int, num_watermark_blocks: int, prompt_len: int, status: AllocStatus
) -> None:
    blocks = make_blocks(watermark=num_watermark_blocks / 8)
    used = [blocks.gpu.allocate() for _ in range(num_used)]
    assert blocks.can_allocate(make_request([1] * prompt_len)) is status
    blocks.gpu.check(dict.fromkeys(used, 1))


@pytest.mark.parametrize(
    ("num_new_tokens", "num_used", "status", "num_blocks"),
    [
        (1, 5, AllocStatus.OK, 3),
        (1, 6, AllocStatus.LATER, 3),
        (24, 0, AllocStatus.OK, 8),
        (25, 0, AllocStatus.NEVER, 9),
    ],
)
def test_append_counts_blocks_and_says_never(
    num_new_tokens: int, num_used: int, status: AllocStatus, num_blocks: int
) -> None:
    blocks = make_blocks()
    (seq,) = start(blocks, prompt_len=8).sequences
    for _ in range(num_used):
        blocks.gpu.allocate()
    assert blocks.can_append_slots(seq, num_new_tokens) is status
    if status is AllocStatus.OK:
        assert not blocks.append_slots(seq, num_new_tokens)
        assert len(seq.block_table) == num_blocks


def test_a_shared_block_is_copied_and_needs_room_for_the_copy() -> None:
    blocks = make_blocks(num_gpu_blocks=2)
    group = start(blocks, prompt_len=3, n=2)
    first, second = group.sequences
    other = blocks.gpu.allocate()
    assert blocks.can_append_slots(first, 1) is AllocStatus.LATER
    blocks.gpu.free(other)
    assert blocks.can_append_slots(first, 1) is AllocStatus.OK
    assert blocks.append_slots(first, 1) == range(1)
    assert not blocks.append_slots(second, 1)  # no sequence reads it any more
    copy = BlockCopy(second.block_table[0], first.block_table[0])
    assert copies_of(blocks.copies.finish_plan().copy) == [copy]
    blocks.check(group.sequences)


@pytest.mark.parametrize("cpu_prefix_cache", [True, False])
def test_branches_are_swapped_as_one_and_go_on_sharing(cpu_prefix_cache: bool) -> None:
    blocks = make_blocks(cpu_prefix_cache=cpu_prefix_cache)
    group = start(blocks, prompt_len=10, n=3)  # two whole blocks and a part, of all three
    first = group.sequences[0]
    blocks.append_slots(first, 1)
    out = swap_out(blocks, group)
    assert len(out) == len({copy.dst for copy in out}) == 4
    assert [seq.block_table[:2] for seq in group.sequences] == [first.block_table[:2]] * 3
    assert group.sequences[1].block_table == group.sequences[2].block_table
    assert first.block_table[2] != group.sequences[1].block_table[2]
    blocks.check(group.sequences)
    taken = [blocks.gpu.allocate() for _ in range(8)]  # all that was cached on the GPU is gone
    for block in taken:
        blocks.gpu.free(block)
    back = swap_in(blocks, group)
    assert len(back) == 4
    assert {copy.src for copy in back} == {copy.dst for copy in out}
    assert [seq.block_table[:2] for seq in group.sequences] == [first.block_table[:2]] * 3
    assert group.sequences[1].block_table == group.sequences[2].block_table
    assert blocks.is_write_shared(group.sequences[1])
    assert not blocks.is_write_shared(first)
    blocks.check(group.sequences)
    for seq in group.sequences:
        blocks.free(seq)
    blocks.check([])


def test_whole_blocks_that_are_still_on_the_gpu_are_not_copied_back() -> None:
    blocks = make_blocks()
    group = start(blocks, prompt_len=10)
    swap_out(blocks, group)
    assert len(swap_in(blocks, group)) == 1  # the part of a block has no name
    blocks.check(group.sequences)


def test_of_a_group_that_was_swapped_out_the_last_blocks_are_evicted_first() -> None:
    blocks = make_blocks(num_gpu_blocks=3, num_cpu_blocks=4)
    group = start(blocks, prompt_len=10)
    head = group.sequences[0].block_table[0]
    swap_out(blocks, group)
    for _ in range(2):  # the block that was not whole, and the second
        blocks.gpu.allocate()
    assert blocks.gpu.is_cached(head)


def test_a_found_prefix_is_known_to_be_on_the_cpu_too() -> None:
    blocks = make_blocks()
    first = start(blocks, prompt_len=10)
    swap_out(blocks, first)
    second = make_request([1] * 10)
    (seq,) = second.sequences
    prefix = blocks.find_prefix(seq)
    seq.num_computed_tokens = len(prefix) * blocks.block_size
    blocks.start(seq, prefix)
    second.set_status(SequenceStatus.RUNNING)
    assert len(swap_out(blocks, second)) == 1
    blocks.check([*first.sequences, seq])


def test_a_shared_prefix_has_no_name_without_the_cache() -> None:
    blocks = make_blocks(prefix_caching=False)
    group = start(blocks, prompt_len=10)
    (seq,) = make_request([1] * 10).sequences
    seq.num_computed_tokens = 8
    blocks.start(seq, [FoundBlock(block) for block in group.sequences[0].block_table[:2]])
    seq.group.set_status(SequenceStatus.RUNNING)
    assert seq.num_cached_blocks == 0
    assert len(swap_out(blocks, seq.group)) == 3
    blocks.check([*group.sequences, seq])


def test_a_group_that_holds_more_than_it_should_needs_that_much_to_come_back() -> None:
    blocks = make_blocks(num_gpu_blocks=4)
    group = start(blocks, prompt_len=12)
    swap_out(blocks, group)
    group.num_prompt_tokens = 4  # it would take one block
    group.max_tokens = 1
    for _ in range(2):
        blocks.gpu.allocate()
    assert blocks.swaps.can_swap_in(group) is AllocStatus.LATER


def test_whole_blocks_that_are_still_on_the_cpu_are_not_copied_out_again() -> None:
    blocks = make_blocks()
    group = start(blocks, prompt_len=10)
    swap_out(blocks, group)
    swap_in(blocks, group)
    assert len(swap_out(blocks, group)) == 1
    blocks.check(group.sequences)


def test_two_swapped_groups_share_their_prefix_on_the_cpu() -> None:
    blocks = make_blocks(num_cpu_blocks=4)
    groups = [start(blocks, prompt_len=10) for _ in range(2)]
    assert len(swap_out(blocks, groups[0])) == 3
    assert blocks.swaps.can_swap_out(groups[1])  # the one block that is free will do
    assert len(swap_out(blocks, groups[1])) == 1
    blocks.check([seq for group in groups for seq in group.sequences])


def test_without_the_cache_on_the_cpu_a_group_takes_all_its_blocks() -> None:
    blocks = make_blocks(num_cpu_blocks=5, cpu_prefix_cache=False)
    groups = [start(blocks, prompt_len=10) for _ in range(2)]
    assert len(swap_out(blocks, groups[0])) == 3
    assert not blocks.swaps.can_swap_out(groups[1])
    assert not blocks.cpu.hashes


@pytest.mark.parametrize(
    ("num_used", "num_watermark_blocks", "status"),
    [
        (4, 0, AllocStatus.OK),  # three blocks, and one to grow
        (5, 0, AllocStatus.LATER),
        (3, 1, AllocStatus.OK),
        (4, 1, AllocStatus.LATER),
        (0, 7, AllocStatus.OK),  # alone
    ],
)
def test_a_swapped_group_comes_back_with_a_block_to_grow_above_the_watermark(
    num_used: int, num_watermark_blocks: int, status: AllocStatus
) -> None:
    blocks = make_blocks(watermark=num_watermark_blocks / 8, prefix_caching=False)
    group = start(blocks, prompt_len=10)
    swap_out(blocks, group)
    for _ in range(num_used):
        blocks.gpu.allocate()
    assert blocks.swaps.can_swap_in(group) is status


def test_blocks_in_use_on_the_gpu_make_room_for_a_swapped_group() -> None:
    blocks = make_blocks()
    groups = [start(blocks, prompt_len=10) for _ in range(2)]  # two blocks are the same
    swap_out(blocks, groups[1])
    assert blocks.swaps.can_swap_in(groups[1]) is AllocStatus.OK
    for _ in range(3):
        blocks.gpu.allocate()
    assert blocks.gpu.num_free == 2
    assert blocks.swaps.can_swap_in(groups[1]) is AllocStatus.OK
    blocks.gpu.allocate()
    assert blocks.swaps.can_swap_in(groups[1]) is AllocStatus.LATER


def test_a_swapped_group_that_can_never_fit_is_told_so() -> None:
    blocks = make_blocks(num_gpu_blocks=3)
    group = start(blocks, prompt_len=12)
    swap_out(blocks, group)
    group.max_tokens = 1  # its blocks are all it takes
    assert blocks.swaps.can_swap_in(group) is AllocStatus.OK
    group.max_tokens = 2
    assert blocks.swaps.can_swap_in(group) is AllocStatus.NEVER


def test_a_group_cannot_come_back_in_the_step_that_takes_it_out() -> None:
    blocks = make_blocks()
    group = start(blocks, prompt_len=10)
    blocks.swaps.swap_out(group)
    assert blocks.swaps.can_swap_in(group) is AllocStatus.LATER
    blocks.copies.finish_plan()
    assert blocks.swaps.can_swap_in(group) is AllocStatus.OK


def test_blocks_that_a_plan_reads_on_the_cpu_are_not_written_by_it() -> None:
    blocks = make_blocks(num_gpu_blocks=4, num_cpu_blocks=3, prefix_caching=False)
    group = start(blocks, prompt_len=10)
    swap_out(blocks, group)
    blocks.swaps.swap_in(group)
    group.set_status(SequenceStatus.RUNNING)
    assert not blocks.swaps.can_swap_out(group)
    blocks.copies.finish_plan()
    assert blocks.swaps.can_swap_out(group)


def test_copies_of_evicted_blocks_give_way_to_a_group_in_the_same_plan() -> None:
    blocks = make_blocks(num_cpu_blocks=3)
    ended = start(blocks, prompt_len=8, kind=2)
    for seq in ended.sequences:
        blocks.free(seq)
    group = start(blocks, prompt_len=10)
    taken = [blocks.gpu.allocate() for _ in range(5)]  # evicts two blocks, which are to be kept
    assert blocks.cpu.num_free == 1
    assert blocks.swaps.can_swap_out(group)
    assert sorted(copy.dst for copy in swap_out(blocks, group)) == [0, 1, 2]
    blocks.gpu.check(dict.fromkeys(taken, 1))
    blocks.cpu.check(dict.fromkeys(group.sequences[0].block_table, 1))


def test_a_group_may_share_an_evicted_block_that_the_plan_is_copying() -> None:
    """Its own block of the same content has no name on the GPU: another was first."""
    blocks = make_blocks(num_gpu_blocks=5, num_cpu_blocks=4)
    groups = [make_request([1] * 5, max_tokens=8) for _ in range(2)]
    for group in groups:  # both compute the prompt, neither finds it
        blocks.start(group.sequences[0], [])
    for group in groups:
        group.set_status(SequenceStatus.RUNNING)
        group.sequences[0].num_computed_tokens = 5
        blocks.cache_blocks(group.sequences[0])
    first, second = (group.sequences[0] for group in groups)
    evicted = first.block_table[0]
    blocks.free(first)
    while blocks.gpu.is_cached(evicted):
        blocks.gpu.allocate()
    assert blocks.swaps.can_swap_out(groups[1])
    blocks.swaps.swap_out(groups[1])
    assert blocks.cpu.num_free == 2
    third = make_request([3] * 12)  # of three blocks: it must not take what the second has got
    third.sequences[0].block_table = [0, 1, 2]
    assert not blocks.swaps.can_swap_out(third)
    copies = copies_of(blocks.copies.finish_plan().swap_out)
    assert len(copies) == 2 and copies[1] == BlockCopy(evicted, second.block_table[0])
    assert blocks.cpu.is_shared(second.block_table[0]) is False
    blocks.cpu.check(dict.fromkeys(second.block_table, 1))


def test_a_copy_that_is_given_up_for_a_group_is_not_counted_as_its_own() -> None:
    """The plan copies two evicted blocks; one of them holds what a block of the group holds."""
    blocks = make_blocks(num_gpu_blocks=5, num_cpu_blocks=2)
    groups = [make_request([1] * 5, max_tokens=8) for _ in range(2)]
    for group in groups:
        blocks.start(group.sequences[0], [])
    for group in groups:
        group.set_status(SequenceStatus.RUNNING)
        group.sequences[0].num_computed_tokens = 5
        blocks.cache_blocks(group.sequences[0])
    blocks.free(groups[0].sequences[0])
    (other,) = start(blocks, prompt_len=4, kind=2).sequences
    blocks.free(other)
    while blocks.gpu.num_cached:
        blocks.gpu.allocate()
    assert blocks.cpu.num_free == 0
    assert blocks.swaps.can_swap_out(groups[1])
    assert len(swap_out(blocks, groups[1])) == 2
    blocks.cpu.check(dict.fromkeys(groups[1].sequences[0].block_table, 1))


def test_blocks_of_a_swapped_group_are_not_fetched_where_computing_is_cheaper() -> None:
    costs = CostModel(block_bytes=10, copy_bytes_per_s=1, prefill_tokens_per_s=100)
    blocks = make_blocks(costs=costs)
    group = start(blocks, prompt_len=10)
    swap_out(blocks, group)
    for _ in range(8):
        blocks.gpu.allocate()
    twin = make_request([1] * 10)
    assert blocks.find_prefix(twin.sequences[0]) == []
    costs.copy_bytes_per_s = 1e6
    assert len(blocks.find_prefix(twin.sequences[0])) == 2


def test_a_copy_that_is_to_be_stored_takes_no_block_of_another() -> None:
    blocks = make_blocks(num_cpu_blocks=2)
    group, other = start(blocks, prompt_len=8), start(blocks, prompt_len=4, kind=2)
    hashes = blocks.prefix_hashes(group.sequences[0], 0, 2)
    stored = Hold(blocks.cpu)
    assert all(blocks.copies.store_copy(one, stored) for one in hashes)
    taken = stored.blocks
    copies = copies_of(blocks.copies.finish_plan().swap_out)
    assert [copy.dst for copy in copies] == taken
    stored.release()  # both are cached now
    assert all(blocks.copies.store_copy(one, stored) for one in hashes)
    assert stored.blocks == taken
    assert not blocks.copies.store_copy(*blocks.prefix_hashes(other.sequences[0], 0, 1), stored)
    blocks.check([*group.sequences, *other.sequences])


def test_a_block_that_a_plan_brings_to_the_gpu_is_not_copied_out_by_it() -> None:
    """The worker copies out first. What is on the GPU is not found on the CPU."""
    blocks = make_blocks(cpu_prefix_cache=False)
    group = start(blocks, prompt_len=8)
    (seq,) = group.sequences
    swap_out(blocks, group)
    for block in [blocks.gpu.allocate() for _ in range(8)]:  # what it had there is evicted
        blocks.gpu.free(block)
    blocks.swaps.swap_in(group)
    group.set_status(SequenceStatus.RUNNING)
    (block_hash,) = blocks.prefix_hashes(seq, 0, 1)
    stored = Hold(blocks.cpu)
    assert not blocks.copies.store_copy(block_hash, stored)
    assert not copies_of(blocks.copies.finish_plan().swap_out)
    assert blocks.copies.store_copy(block_hash, stored)
    assert copies_of(blocks.copies.finish_plan().swap_out) == [
        BlockCopy(seq.block_table[0], *stored.blocks)
    ]
    blocks.check(group.sequences)


@pytest.mark.parametrize("num_computing", [1, 2])
def test_what_is_forgotten_is_not_found_where_its_group_goes_later(num_computing: int) -> None:
    """Of sequences that compute the same at once, only the first has blocks that may be found."""
    blocks = make_blocks()
    seqs = [make_request([1] * 8).sequences[0] for _ in range(num_computing)]
    for seq in seqs:
        blocks.start(seq, [])
    for seq in seqs:
        seq.num_computed_tokens = 8
        blocks.cache_blocks(seq)
        seq.group.set_status(SequenceStatus.RUNNING)
        seq.output_token_ids.append(5)
    group, twin = seqs[-1].group, make_request([1] * 8).sequences[0]
    assert blocks.find_prefix(twin)
    blocks.forget_prefixes([seq.group for seq in seqs])
    swap_out(blocks, group)
    assert blocks.find_prefix(twin) == []
    swap_in(blocks, group)
    assert blocks.find_prefix(twin) == []
    blocks.check(seqs)


def test_a_reset_forgets_what_is_cached_once_no_block_is_in_use() -> None:
    blocks = make_blocks()
    (seq,) = start(blocks, prompt_len=10).sequences
    twin = make_request([1] * 10).sequences[0]
    assert not blocks.reset_prefix_cache()
    assert blocks.find_prefix(twin)
    blocks.free(seq)
    assert blocks.reset_prefix_cache()
    assert blocks.find_prefix(twin) == []
    blocks.check([])


def sharing(blocks: BlockSpaceManager, kind: str) -> tuple[Sequence, SequenceGroup, Sequence]:
    """Returns a sequence that shares two blocks, the group that it shares them with, and a sequence
    that wants them.

    Args:
        kind: whether the group is another request, or the other branches of the same one, or one
            that is swapped out.
    """
    group = start(blocks, prompt_len=9, n=1 + (kind == "branch"))
    other = group if kind == "branch" else start(blocks, prompt_len=9)
    wrong = other.sequences[0]
    assert wrong.block_table[:2] == group.sequences[-1].block_table[:2]
    if kind == "swapped":
        swap_out(blocks, group)
    twin = make_request(group.request.prompt_token_ids).sequences[0]
    assert len(blocks.find_prefix(twin)) == 2
    return wrong, group, twin


@pytest.mark.parametrize("kind", ["request", "branch", "swapped"])
def test_blocks_that_went_wrong_are_not_found_where_groups_go_that_share_them(kind: str) -> None:
    blocks = make_blocks()
    wrong, group, twin = sharing(blocks, kind)
    blocks.retract(wrong)
    blocks.free(wrong)
    wrong.status = SequenceStatus.FINISHED
    assert blocks.find_prefix(twin) == []
    if kind != "swapped":
        swap_out(blocks, group)
        assert blocks.find_prefix(twin) == []
    swap_in(blocks, group)
    assert blocks.find_prefix(twin) == []
    swap_out(blocks, group)
    assert blocks.find_prefix(twin) == []
    blocks.check(group.sequences)
    for seq in group.unfinished:
        blocks.free(seq)
    assert blocks.find_prefix(twin) == []
    blocks.check([])


@pytest.mark.parametrize("is_read", [True, False])
def test_what_happens_to_blocks_is_recorded_in_order_where_it_is_read(is_read: bool) -> None:
    blocks = make_blocks()
    blocks.records_events = is_read
    wrong, group, _ = sharing(blocks, "request")
    (seq,), hashes = group.sequences, blocks.prefix_hashes(wrong, 0, 2)
    blocks.retract(wrong)
    wrong.status = SequenceStatus.FINISHED
    blocks.free(wrong)
    blocks.free(seq)  # it is computed again later
    found, retracted = PrefixFound(wrong, 2), [BlockRetracted(one) for one in hashes]
    expected = [found, *retracted, SequenceFreed(wrong, 2)]
    assert blocks.take_events() == (expected if is_read else [])
    assert blocks.take_events() == []
    blocks.check([])


def test_what_went_wrong_elsewhere_is_not_found_where_its_group_goes() -> None:
    blocks = make_blocks()
    group = start(blocks, prompt_len=9)
    twin = make_request(group.request.prompt_token_ids).sequences[0]
    for block_hash in blocks.prefix_hashes(twin, 0, 2):
        blocks.forget(block_hash)
    swap_out(blocks, group)
    assert blocks.find_prefix(twin) == []
    swap_in(blocks, group)
    assert blocks.find_prefix(twin) == []
    blocks.check(group.sequences)


def test_blocks_that_went_wrong_are_found_again_once_they_are_computed_anew() -> None:
    blocks = make_blocks()
    wrong, group, twin = sharing(blocks, "request")
    blocks.retract(wrong)
    blocks.free(wrong)
    anew = start(blocks, prompt_len=9)
    assert anew.sequences[0].block_table[0] != group.sequences[0].block_table[0]
    swap_out(blocks, group)
    found = [block for block, _ in blocks.find_prefix(twin)]
    assert found == anew.sequences[0].block_table[:2]
    for seq in anew.sequences:
        blocks.free(seq)
    swap_in(blocks, group)
    assert set(group.sequences[0].block_table).isdisjoint(found)
    assert [block for block, _ in blocks.find_prefix(twin)] == found
    blocks.check(group.sequences)

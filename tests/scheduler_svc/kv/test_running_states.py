"""Groups of states: where snapshots stay, what is found, freed, copied, and what a pool holds."""

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_scheduler.kv.block_allocator import AllocStatus
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.kv.running_states import SNAPSHOT_TOKENS
from signalbox_scheduler.requests.sequence_group import Sequence
from tests.scheduler_svc.kv.test_cache_groups import (
    BLOCK_SIZE,
    compute,
    computed,
    make_blocks,
    rows_kept,
)
from tests.scheduler_svc.make import assert_all_free, make_loop, make_request, make_scheduler


def states(num_blocks: int) -> CacheGroup:
    return CacheGroup(kind="state", state_blocks=num_blocks)


GROUPS = (FULL_GROUP, states(3))


def decode(blocks: BlockSpaceManager, seq: Sequence, num_tokens: int) -> None:
    for _ in range(num_tokens):
        seq.is_on_worker = True  # since its first step
        seq.output_token_ids.append(1)
        compute(blocks, seq, 1)
        blocks.check([seq])


def num_found(blocks: BlockSpaceManager, prompt: list[int]) -> int:
    (seq,) = make_request(prompt).sequences
    return blocks.num_tokens(len(blocks.find_prefix(seq)))


def test_the_last_boundary_of_a_prompt_and_the_newest_of_a_sequence_are_kept() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=60, block_size=4)
    seq = computed(blocks, 21)
    assert rows_kept(blocks, seq, 1) == [4, 5]
    assert num_found(blocks, [1] * 21) == 20
    decode(blocks, seq, 9)
    assert rows_kept(blocks, seq, 1) == [6, 7]
    assert num_found(blocks, [1] * 40) == 28
    assert num_found(blocks, [1] * 21) == 20  # it was given up, and is cached
    blocks.free(seq)
    blocks.check([])
    assert blocks.gpu.num_free == 60


def test_a_prefix_ends_at_a_row_with_a_state() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=100, block_size=4)
    blocks.free(computed(blocks, 41))
    assert num_found(blocks, [1] * 30) == 0  # its rows are there, but no state
    assert num_found(blocks, [1] * 60) == 40


def test_a_snapshot_is_left_where_a_request_has_branched_off() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=200, block_size=4)
    blocks.free(computed(blocks, 41))
    branched = make_request([1] * 26 + [2] * 15).sequences[0]
    blocks.start(branched, blocks.find_prefix(branched))
    compute(blocks, branched, 41)
    assert num_found(blocks, [1] * 26 + [3] * 9) == 24
    blocks.check([branched])


@pytest.mark.parametrize(("num_spare", "found"), [(1000, SNAPSHOT_TOKENS), (6, 0)])
def test_a_long_prompt_leaves_snapshots_in_blocks_that_hold_nothing(
    num_spare: int, found: int
) -> None:
    num_tokens = 2 * SNAPSHOT_TOKENS + 100
    blocks = make_blocks(GROUPS, num_gpu_blocks=-(-num_tokens // BLOCK_SIZE) + num_spare)
    (seq,) = make_request([1] * num_tokens).sequences
    blocks.start(seq, [])
    compute(blocks, seq, 100)
    compute(blocks, seq, num_tokens - 100)
    assert num_found(blocks, [1] * (SNAPSHOT_TOKENS + 20) + [2] * 50) == found
    blocks.check([seq])


def test_the_end_of_a_chunk_leaves_no_snapshot() -> None:
    """It would take the room of other prefixes, and depend on whether its step is answered yet."""
    blocks = make_blocks(GROUPS, num_gpu_blocks=60, block_size=4)
    (seq,) = make_request([1] * 61).sequences
    blocks.start(seq, [])
    for num_tokens in (16, 16, 16, 13):
        compute(blocks, seq, num_tokens)
        seq.is_on_worker = True
    names = blocks.prefix_hashes(seq, 0, 15 * 2)[1::2]
    assert [row for row, name in enumerate(names) if blocks.gpu.find(name) is not None] == [14]


def test_a_sequence_goes_on_in_place_where_there_is_no_room_for_a_snapshot() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=11, block_size=4)
    seq = computed(blocks, 13)
    decode(blocks, seq, 3)
    head, others = seq.block_table[-1], Hold(blocks.gpu)
    others.take(blocks.gpu.num_free - 1)
    decode(blocks, seq, 1)
    assert rows_kept(blocks, seq, 1)[-1] == 4
    assert seq.block_table[-1] == head
    assert num_found(blocks, [1] * 17) == 0  # the others took the blocks of earlier ones
    others.release()
    blocks.free(seq)
    blocks.check([])


def test_a_state_is_evicted_whole() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=12, block_size=4)
    blocks.free(computed(blocks, 9))
    assert blocks.gpu.num_free == 12
    assert num_found(blocks, [1] * 9) == 8
    taken = [blocks.gpu.allocate() for _ in range(12)]
    assert len({*taken}) == 12
    assert num_found(blocks, [1] * 9) == 0


def test_a_branch_copies_all_blocks_of_the_state_that_it_goes_on_in() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=40, block_size=4)
    parent = computed(blocks, 6)
    child = Sequence(seq_id=10**9, branch=1, group=parent.group)
    child.num_computed_tokens, child.output_token_ids = 6, [7]
    child.is_on_worker = parent.is_on_worker = True
    blocks.fork(parent, child)
    assert blocks.can_append_slots(child, 1) is AllocStatus.OK
    blocks.append_slots(child, 1)
    before, after = (blocks.gpu.blocks_of(seq.block_table[3]) for seq in (parent, child))
    copies = blocks.copies.finish_plan().copy
    pairs = set(zip(copies.src.tolist(), copies.dst.tolist(), strict=True))
    assert {*zip(before, after, strict=True)} < pairs
    assert after in blocks.states.take_new()


def test_bounds_of_a_group_count_two_states_of_each_sequence() -> None:
    blocks = make_blocks((FULL_GROUP, states(50)), num_gpu_blocks=1000)
    sizes = blocks.sizes
    alone = make_request([1] * 100, max_tokens=14_000)
    assert sizes.most_blocks(alone) == -(-14_099 // 16) + 100
    assert sizes.can_ever_hold(alone)
    assert sizes.longest_alone == 900 * 16 + 1
    assert not sizes.can_ever_hold(make_request([1] * 100, max_tokens=14_000, n=2))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_requests_get_on_one_after_another_in_a_pool_for_one(depth: int) -> None:
    scheduler = make_scheduler(num_gpu_blocks=18, groups=GROUPS, max_num_batched_tokens=16)
    loop = make_loop(scheduler, depth=depth)
    for number in range(6):
        group = make_request([number % 2 + 1] * 20, max_tokens=20, arrival=number)
        scheduler.admission.add(group)
    loop.run()
    assert_all_free(loop)


def named(prompt: list[int], *positions: int) -> Sequence:
    (seq,) = make_request(prompt, snapshot_positions=positions).sequences
    return seq


def run(blocks: BlockSpaceManager, seq: Sequence, num_output_tokens: int = 0) -> None:
    """Computes a prompt from what is found of it on, then tokens one by one."""
    prefix = blocks.find_prefix(seq)
    seq.num_computed_tokens = blocks.num_tokens(len(prefix))
    blocks.start(seq, prefix)
    compute(blocks, seq, seq.num_tokens - seq.num_computed_tokens)
    decode(blocks, seq, num_output_tokens)


def test_snapshots_are_left_at_the_positions_that_a_request_names() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=60, block_size=4)
    seq = named([1] * 41, 3, 10, 30)
    run(blocks, seq)
    names = blocks.prefix_hashes(seq, 0, 10 * 2)[1::2]
    assert [row for row, name in enumerate(names) if blocks.gpu.find(name) is not None] == [1, 6]
    blocks.free(seq)
    assert num_found(blocks, [1] * 30) == 28
    assert num_found(blocks, [1] * 12 + [2] * 20) == 8


@pytest.mark.parametrize("budget", [3, 4, 10])
def test_a_prompt_in_chunks_leaves_a_snapshot_wherever_it_is_named(budget: int) -> None:
    scheduler = make_scheduler(num_gpu_blocks=60, groups=GROUPS, max_num_batched_tokens=budget)
    loop = make_loop(scheduler)
    for position in range(8, 40):
        prompts = [[position] * position + [own] * 20 for own in (100, 101)]
        for prompt in prompts:
            group = make_request(prompt, max_tokens=1, snapshot_positions=(position,))
            scheduler.admission.add(group)
            loop.run()
        assert group.num_cached_tokens == position // 4 * 4
    assert_all_free(loop)


def test_a_state_within_a_row_is_not_found_by_the_name_of_the_row() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=60, block_size=4)
    seq = named([1] * 41, 30)
    blocks.start(seq, [])
    compute(blocks, seq, 10)
    compute(blocks, seq, 20)  # its table is sent in full, with the state behind 10 tokens
    assert rows_kept(blocks, seq, 1) == [6, 7]
    blocks.check([seq])
    blocks.free(seq)
    assert num_found(blocks, [1] * 27) == 0
    assert num_found(blocks, [1] * 41) == 28


def test_blocks_that_no_snapshot_reaches_are_evicted_first() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=20, block_size=4)
    reached, cut_off = named([1] * 10), named([2] * 30)
    run(blocks, reached)
    blocks.free(reached)
    blocks.start(cut_off, [])
    compute(blocks, cut_off, 18)
    blocks.free(cut_off)  # as if it had to yield
    others = Hold(blocks.gpu)
    others.take(blocks.gpu.num_empty + 4)
    assert num_found(blocks, [1] * 10) == 8
    assert blocks.gpu.find(blocks.prefix_hashes(cut_off, 0, 1)[0]) is None


def test_a_snapshot_is_evicted_before_the_blocks_that_only_it_reaches() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=40, block_size=4)
    first, second = named([1] * 12 + [2] * 9, 12, 20), named([1] * 12 + [3] * 9, 12, 20)
    for seq in (first, second):
        run(blocks, seq)
        blocks.free(seq)
    others = Hold(blocks.gpu)
    others.take(blocks.gpu.num_empty + 1)
    assert [num_found(blocks, [1] * 12 + [kind] * 9) for kind in (2, 3)] == [12, 20]
    others.take(2 + 2)  # the rest of its state, and the blocks behind the shared ones
    assert [num_found(blocks, [1] * 12 + [kind] * 9) for kind in (2, 3)] == [12, 20]
    others.take(1)
    assert num_found(blocks, [1] * 12 + [3] * 9) == 12


def test_a_snapshot_that_a_later_one_replaces_is_evicted_before_older_ones() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=60, block_size=4)
    older, turn = named([9] * 10), named([1] * 17)
    for seq in (older, turn):
        run(blocks, seq)
        blocks.free(seq)
    later = named([1] * 17 + [2] * 12)
    run(blocks, later)
    others = Hold(blocks.gpu)
    others.take(blocks.gpu.num_empty + 1)
    assert num_found(blocks, [1] * 17) == 0
    assert num_found(blocks, [9] * 10) == 8
    blocks.free(later)
    assert num_found(blocks, [1] * 17 + [2] * 12) == 28


def test_the_end_of_system_text_stays_while_requests_begin_with_it() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=26, block_size=4)
    for kind in range(2, 9):
        seq = named([1] * 20 + [kind] * 9, 20, 28)
        if kind > 2:
            assert num_found(blocks, seq.group.request.prompt_token_ids) == 20
        run(blocks, seq, 5)
        blocks.free(seq)
        blocks.check([])


def test_a_state_that_was_fetched_is_known_as_one_where_requests_have_branched_off() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=60, block_size=4)
    for kind in (1, 2):
        seq = named([1] * 26 + [kind] * 15)
        run(blocks, seq)
        blocks.free(seq)
    names = blocks.prefix_hashes(seq, 0, 6 * 2)
    everything = Hold(blocks.gpu)
    everything.take(60)
    everything.release()
    fetched = Hold(blocks.gpu)
    fetched.take(6)
    fetched.take_state(3)
    fetched.publish([*names[::2], names[-1]]).release()
    third = named([1] * 26 + [3] * 15)
    assert num_found(blocks, third.group.request.prompt_token_ids) == 24
    run(blocks, third)
    blocks.free(third)
    everything.take(blocks.gpu.num_empty + 1)  # what is evicted first goes
    assert num_found(blocks, [1] * 26 + [4] * 9) == 24


def test_running_sequences_give_up_snapshots_before_one_is_preempted() -> None:
    # The rows of both and two states fit, not the states that they leave.
    scheduler = make_scheduler(num_gpu_blocks=16, groups=GROUPS)
    loop = make_loop(scheduler)
    for arrival in range(2):
        scheduler.admission.add(make_request([arrival + 1] * 5, max_tokens=11, arrival=arrival))
    loop.run()
    assert scheduler.preemption.num_preemptions == 0
    assert_all_free(loop)


def test_nothing_is_known_of_a_state_from_what_its_blocks_held_before() -> None:
    blocks = make_blocks(GROUPS, num_gpu_blocks=60, num_cpu_blocks=60, block_size=4)
    blocks.free(computed(blocks, 9, kind=2))
    seq = computed(blocks, 41)
    decode(blocks, seq, 20)
    head = seq.block_table[14 * 2 + 1]  # it replaces the snapshot before it once it is found
    blocks.free(seq)
    others = Hold(blocks.gpu)
    others.take(60)  # the first prompt is in the CPU pool alone
    blocks.copies.finish_plan()
    free = [block for block in range(60) if block != head][:5]
    for block in (*free[:3], head, *free[3:]):  # its state comes behind two other blocks
        others.drop(block)
    (again,) = make_request([2] * 9).sequences
    blocks.start(again, blocks.find_prefix(again))
    assert again.block_table[3] == head
    again.output_token_ids += [1] * 60
    (same,) = make_request([2] * 9 + [1] * 60).sequences
    assert blocks.prefix_hashes(again, 0, 34) == blocks.prefix_hashes(same, 0, 34)


def test_tokens_found_in_the_cpu_pool_are_counted_whole() -> None:
    """Rows before the last one of a prefix have no state, and count as much as it."""
    scheduler = make_scheduler(num_gpu_blocks=17, num_cpu_blocks=60, groups=GROUPS)
    loop = make_loop(scheduler)
    for arrival, token in enumerate([1, 2, 2, 1]):  # what evicts the first, and it again
        scheduler.admission.add(make_request([token] * 41, max_tokens=2, arrival=arrival))
        loop.run()
    found = scheduler.planner.num_prefix_hits
    assert found == scheduler.planner.num_cpu_prefix_hits + 40 == 80

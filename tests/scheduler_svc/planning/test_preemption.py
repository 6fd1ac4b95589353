"""A group that yields comes back, in bounded time, whole; one that can never fit ends."""

import itertools

import pytest

from signalbox_contract.errors import Code
from signalbox_scheduler.config import PreemptionMode
from signalbox_scheduler.requests.sequence_group import SequenceGroup, SequenceStatus
from tests.scheduler_svc.beams import assert_found, make_search
from tests.scheduler_svc.fake_worker import copies_of, expected
from tests.scheduler_svc.make import Loop, make_loop, make_request, make_scheduler, outputs


def assert_expected(group: SequenceGroup) -> None:
    assert group.failure is None
    assert outputs(group) == [
        expected(group.request.prompt_token_ids, num_tokens=group.max_tokens, branch=branch)
        for branch in range(group.request.num_sequences)
    ]


def assert_all_free(loop: Loop) -> None:
    scheduler = loop.scheduler
    scheduler.check()
    for pool in (scheduler.blocks.gpu, scheduler.blocks.cpu):
        assert pool.num_free == pool.num_blocks
    assert not scheduler.has_unfinished


def add(loop: Loop, *groups: SequenceGroup) -> None:
    for group in groups:
        loop.scheduler.admission.add(group)


def step(loop: Loop) -> None:
    loop.turn()
    loop.scheduler.check()


def forget(loop: Loop, group: SequenceGroup) -> None:
    """Makes the worker forget a group, as if it had yielded."""
    loop.scheduler.state.decode_batch.release_all()
    for seq in group.sequences:
        loop.scheduler.state.worker_state.forget(seq)


def make_swapped(loop: Loop, *, n: int = 1) -> SequenceGroup:
    """A group of two branches that has just been swapped out, by an older one of one block."""
    group = make_request([2] * 8, n=n, max_tokens=9, arrival=1.0)
    add(loop, group)
    while len(group.sequences[0].output_token_ids) < 6:
        step(loop)
    add(loop, make_request([1] * 4, max_tokens=4))
    while group.sequences[0].status is SequenceStatus.RUNNING:
        step(loop)
    assert group.sequences[0].status is SequenceStatus.SWAPPED
    return group


def test_a_running_group_that_can_never_go_on_ends_and_the_others_go_on() -> None:
    loop = make_loop(make_scheduler(num_gpu_blocks=4), depth=1)
    big, small = make_request([1] * 8, max_tokens=8), make_request([2] * 2, max_tokens=3)
    add(loop, big)
    step(loop)
    big.max_length = 100
    add(loop, small)
    loop.run()
    assert big.failure is not None
    assert big.failure.code is Code.RESOURCE_EXHAUSTED
    assert outputs(big) == [expected([1] * 8, num_tokens=9)]  # four blocks of tokens, and one drawn
    assert_expected(small)
    assert_all_free(loop)


def test_a_swapped_group_computes_in_the_step_that_brings_it_back() -> None:
    loop = make_loop(make_scheduler(num_gpu_blocks=7, num_cpu_blocks=8), depth=1)
    group = make_swapped(loop, n=2)
    while group.sequences[0].status is SequenceStatus.SWAPPED:
        loop.answer()
        loop.send()
    (plan,) = loop.sent
    assert len(plan.block_moves.swap_in.src)
    assert sorted(plan.seq_ids) == [seq.seq_id for seq in group.sequences]
    loop.run()
    assert_expected(group)
    assert_all_free(loop)


@pytest.mark.parametrize("max_num_batched_tokens", [1, 2, 3])
def test_branches_that_a_step_has_no_tokens_for_come_back_without_computing(
    max_num_batched_tokens: int,
) -> None:
    scheduler = make_scheduler(num_gpu_blocks=7, num_cpu_blocks=8)
    loop = make_loop(scheduler, depth=1)
    group = make_swapped(loop, n=2)
    scheduler.token_budget = max_num_batched_tokens
    while group.sequences[0].status is SequenceStatus.SWAPPED:
        loop.answer()
        loop.send()
    assert loop.sent[0].num_new_tokens == [1] * min(max_num_batched_tokens, 2)
    assert {seq.status for seq in group.sequences} == {SequenceStatus.RUNNING}
    loop.run()
    assert_expected(group)
    assert_all_free(loop)


def test_a_swapped_group_without_a_place_waits_until_there_is_one() -> None:
    scheduler = make_scheduler(num_gpu_blocks=7, num_cpu_blocks=8, max_num_seqs=3)
    loop = make_loop(scheduler, depth=1)
    group = make_swapped(loop, n=2)
    loop.answer()
    scheduler.abort(scheduler.running[0])
    late = make_request([3] * 4, n=2, max_tokens=1, arrival=0.5)  # of one block
    late.max_length = 5
    scheduler.state.queues.run(late)  # it took the places while the group was out
    assert scheduler.blocks.gpu.num_free == 7
    loop.send()
    assert group.sequences[0].status is SequenceStatus.SWAPPED
    loop.run()
    for each in (group, late):
        assert_expected(each)
    assert_all_free(loop)


def test_a_branch_that_had_no_blocks_when_its_group_was_swapped_shares_its_prompt() -> None:
    scheduler = make_scheduler(num_gpu_blocks=32, num_cpu_blocks=8)
    loop = make_loop(scheduler, depth=1)
    group = make_request([1] * 8, n=2, max_tokens=9)
    add(loop, group)
    while len(group.sequences[0].output_token_ids) < 3:
        step(loop)
    second = group.sequences[1]
    forget(loop, group)
    scheduler.blocks.free(second)  # as if the group had been recomputed, and this one not yet
    second.forget_progress()
    scheduler._swapping.preempt(group)
    copies = copies_of(scheduler.blocks.copies.finish_plan().swap_out)
    loop.worker.cpu |= {copy.dst: dict(loop.worker.gpu[copy.src]) for copy in copies}
    loop.send()
    while not second.block_table:
        loop.answer()
        loop.send()
    assert second.num_computed_tokens >= 8
    loop.run()
    assert_expected(group)
    assert_all_free(loop)


def test_a_group_that_is_swapped_in_the_middle_of_its_prompt_caches_what_is_computed() -> None:
    scheduler = make_scheduler(num_gpu_blocks=6, num_cpu_blocks=8)
    loop = make_loop(scheduler, depth=1)
    add(loop, make_request([1] * 4, max_tokens=8))
    step(loop)
    scheduler.token_budget = 3  # two for a prompt
    young = make_request([2] * 16, max_tokens=4, arrival=1.0)
    add(loop, young)
    while not young.num_preemptions:
        step(loop)
    (seq,) = young.sequences
    assert 4 <= seq.num_computed_tokens < 16
    cached = seq.block_table[: seq.num_computed_tokens // 4]
    assert sorted(scheduler.blocks.cpu.hashes) == sorted(cached)
    loop.run()
    assert_expected(young)
    assert_all_free(loop)


def test_what_a_prompt_finds_of_its_own_after_a_preemption_does_not_count_as_cached() -> None:
    scheduler = make_scheduler(num_gpu_blocks=6)
    loop = make_loop(scheduler, depth=1)
    add(loop, make_request([1] * 4, max_tokens=8))
    step(loop)
    scheduler.token_budget = 3  # two for a prompt
    young = make_request([2] * 16, max_tokens=4, arrival=1.0)
    add(loop, young)
    while not young.num_preemptions:
        step(loop)
    assert young.times.first_token is None
    loop.run()
    assert scheduler.planner.num_prefix_hits
    assert young.num_cached_tokens == 0
    assert_expected(young)
    assert_all_free(loop)


def test_without_room_on_the_cpu_a_group_is_recomputed() -> None:
    loop = make_loop(make_scheduler(num_gpu_blocks=6, num_cpu_blocks=1), depth=1)
    groups = [make_request([i + 1] * 8, max_tokens=12, arrival=float(i)) for i in range(2)]
    add(loop, *groups)
    while not groups[1].num_preemptions:
        step(loop)
    assert groups[1].sequences[0].status is SequenceStatus.WAITING
    loop.run()
    for group in groups:
        assert_expected(group)
    assert_all_free(loop)


def test_branches_that_are_recomputed_hold_their_prompt_once() -> None:
    """Even if another group's equal blocks can be found by the time the second branch starts."""
    scheduler = make_scheduler(num_gpu_blocks=32, mode=PreemptionMode.RECOMPUTE)
    loop = make_loop(scheduler, depth=1)
    group = make_request([1] * 8, n=2, max_tokens=12, arrival=1.0)
    add(loop, group)
    for _ in range(4):
        step(loop)
    lost = scheduler.evacuate()
    other = make_loop(make_scheduler(num_gpu_blocks=32, admission=scheduler.admission), depth=2)
    add(other, *lost)
    twin = make_request([1] * 8, max_tokens=12)
    add(other, twin)  # computes the same prompt in the same step: neither finds the other's
    most = other.scheduler.blocks.sizes.most_blocks(group)
    while other.send() or other.send() or other.sent:
        if len(other.sent) == 2 or not other.send():
            other.answer()
        assert other.scheduler.blocks.num_distinct_blocks(group) <= most
        tables = [seq.block_table[:2] for seq in group.unfinished if seq.block_table]
        assert all(table == tables[0] for table in tables)
    for each in (group, twin):
        assert_expected(each)
    assert other.scheduler.planner.num_prefix_hits == 8
    assert_all_free(other)


def set_back(loop: Loop, group: SequenceGroup) -> None:
    """Lets a group be recomputed, as if it had yielded."""
    forget(loop, group)
    for seq in group.sequences:
        loop.scheduler.blocks.free(seq)
        seq.forget_progress()
    loop.scheduler.state.queues.set_back(group)


def test_a_branch_does_not_share_a_prompt_that_is_on_its_way() -> None:
    """The step may fail, and leave nothing there."""
    loop = make_loop(make_scheduler(num_gpu_blocks=32, prefix_caching=False))
    group = make_request([1] * 8, n=2, max_tokens=16)
    add(loop, group)
    for _ in range(3):
        step(loop)
    set_back(loop, group)
    first, second = group.sequences
    assert loop.send()
    loop.send()
    assert (bool(first.block_table), bool(second.block_table)) == (True, False)
    loop.run()
    assert_expected(group)
    assert_all_free(loop)


def test_branches_that_are_recomputed_find_what_they_drew() -> None:
    scheduler = make_scheduler(num_gpu_blocks=32, mode=PreemptionMode.RECOMPUTE)
    loop = make_loop(scheduler, depth=1)
    group = make_request([1] * 8, n=2, max_tokens=16)
    add(loop, group)
    while len(group.sequences[0].output_token_ids) < 10:
        step(loop)
    set_back(loop, group)
    num_prefix_hits = scheduler.planner.num_prefix_hits
    while not group.sequences[1].block_table:
        step(loop)
    assert scheduler.planner.num_prefix_hits - num_prefix_hits == 2 * 16
    loop.run()
    assert_expected(group)
    assert_all_free(loop)


@pytest.mark.parametrize("depth", [1, 2])
def test_beams_that_are_recomputed_take_the_blocks_of_those_behind_them(depth: int) -> None:
    """A beam waits for its siblings: two groups that each lack one of theirs would for ever."""
    admission = make_scheduler().admission
    groups = [make_search([kind] * 5, width=2, n=1, max_tokens=9, stops=()) for kind in (1, 2)]
    for arrival, group in enumerate(groups):
        group.times.arrival = float(arrival)
        lost = make_loop(make_scheduler(admission=admission), depth=1)
        add(lost, group)
        while len(group.sequences) < 2 or group.sequences[0].num_tokens < 12:
            step(lost)
        lost.scheduler.evacuate()
    loop = make_loop(
        make_scheduler(num_gpu_blocks=7, admission=admission, prefix_caching=False), depth=depth
    )
    add(loop, *groups)
    loop.run()
    for group in groups:
        assert_found(group)
    assert groups[0].num_preemptions == 0
    assert groups[1].num_preemptions > 0
    assert_all_free(loop)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_beam_that_lacks_blocks_takes_those_of_a_group_that_decodes_at_once(depth: int) -> None:
    """Its siblings wait for it; an empty step would be the last until a request comes."""
    lost = make_loop(make_scheduler(num_gpu_blocks=32), depth=1)
    group = make_search([1] * 5, width=2, n=1, max_tokens=9, stops=())
    add(lost, group)
    while len(group.sequences) < 2 or group.sequences[0].num_tokens < 13:
        step(lost)
    loop = make_loop(make_scheduler(num_gpu_blocks=7, prefix_caching=False), depth=depth)
    young = make_request([2], max_tokens=9, arrival=1.0)
    add(loop, young)
    step(loop)  # a group joins the columns after its first token
    add(loop, *lost.scheduler.evacuate())
    loop.send()
    assert young.is_in_decode_batch
    loop.answer()
    loop.send()
    assert young.num_preemptions == 1
    loop.run()
    assert_found(group)
    assert_expected(young)
    assert_all_free(loop)


def test_a_prompt_in_flight_that_has_to_yield_does_not_go_on() -> None:
    """Else it would be in flight again in the next step, and keep its blocks to its end."""
    scheduler = make_scheduler(num_gpu_blocks=6, num_cpu_blocks=8, max_num_batched_tokens=4)
    loop = make_loop(scheduler, depth=2)
    old, young = make_request([1] * 4), make_request([2] * 16, max_tokens=1, arrival=1.0)
    add(loop, old, young)
    while young.sequences[0].status is not SequenceStatus.SWAPPED:
        if not loop.send() or len(loop.sent) == 2:
            loop.answer()
        assert young.sequences[0].num_computed_tokens < 13
    loop.run()
    for group in (old, young):
        assert_expected(group)
    assert_all_free(loop)


@pytest.mark.parametrize(
    ("prompt_len", "num_gpu_blocks"),
    [
        (13, 9),  # there is too little from the first
        (16, 10),  # there would be enough if the older did not take a block in the same step
    ],
)
def test_nobody_comes_in_while_a_branch_that_runs_is_short_of_blocks(
    prompt_len: int, num_gpu_blocks: int
) -> None:
    """Though some are free: a group that took them would have to give them back at once."""
    lost = make_loop(make_scheduler(num_gpu_blocks=32), depth=1)
    group = make_request([1] * 8, n=2, max_tokens=9, arrival=1.0)
    add(lost, group)
    while group.sequences[0].num_tokens < 13:
        step(lost)
    scheduler = make_scheduler(num_gpu_blocks=num_gpu_blocks, prefix_caching=False)
    loop = make_loop(scheduler, depth=1)
    older = make_request([2] * prompt_len, max_tokens=3)  # of four blocks, as each branch is
    add(loop, older, *lost.scheduler.evacuate())
    step(loop)
    small = make_request([3], max_tokens=1, arrival=2.0)
    add(loop, small)
    while not older.is_finished:
        step(loop)
        assert scheduler.blocks.gpu.num_free
        assert small.times.first_scheduled is None
    loop.run()
    assert small.num_preemptions == 0
    for each in (older, group, small):
        assert_expected(each)
    assert_all_free(loop)


@pytest.mark.parametrize("mode", list(PreemptionMode))
@pytest.mark.parametrize("num_cpu_blocks", [0, 6, 64])
def test_nobody_waits_for_longer_than_those_before_take_alone(
    mode: PreemptionMode, num_cpu_blocks: int
) -> None:
    """The oldest is never preempted and computes in every step; so each in turn is the oldest."""
    scheduler = make_scheduler(num_gpu_blocks=9, num_cpu_blocks=num_cpu_blocks, mode=mode)
    loop = make_loop(scheduler, depth=1)
    groups = [make_request([i + 1] * 9, max_tokens=20, arrival=float(i)) for i in range(12)]
    waiting = iter(groups)
    add(loop, *itertools.islice(waiting, 3))
    steps_of_one_alone = 20
    for group in groups:
        for _ in range(steps_of_one_alone + 1):
            if group in loop.ended:
                break
            step(loop)
            add(loop, *itertools.islice(waiting, 1))  # they keep coming
        assert group in loop.ended
    loop.run()
    assert scheduler.preemption.num_preemptions > 0
    for group in groups:
        assert_expected(group)
    assert_all_free(loop)

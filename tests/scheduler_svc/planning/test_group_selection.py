"""The groups that a worker takes out of the queue, makes room for, and preempts."""

import pytest

from signalbox_contract.errors import Code
from signalbox_contract.request import BeamSearchParams
from signalbox_scheduler.config import PolicyName, PolicySettings, PreemptionMode
from signalbox_scheduler.kv.block_allocator import AllocStatus
from signalbox_scheduler.planning.group_selection import MAX_PASSED_OVER
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.policies import make_policy
from signalbox_scheduler.requests.sequence_group import SequenceGroup, SequenceStatus
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import Loop, make_loop, make_request, make_scheduler, outputs

PREFIX = [11, 12, 13, 14, 15, 16, 17, 18]  # two blocks


def make_workers(count: int = 2, **options: int) -> list[Loop]:
    admission = AdmissionQueue()
    return [make_loop(make_scheduler(admission=admission, **options)) for _ in range(count)]


def add(loop: Loop, *groups: SequenceGroup) -> None:
    for group in groups:
        loop.scheduler.admission.add(group)


def cache_prefix(loop: Loop) -> None:
    """Lets a worker hold PREFIX in its cache."""
    add(loop, make_request([*PREFIX, 1], max_tokens=1))
    loop.run()


def assert_done(loops: list[Loop], *groups: SequenceGroup) -> None:
    for group in groups:
        assert group.failure is None
        assert outputs(group) == [
            expected(group.request.prompt_token_ids, num_tokens=group.max_tokens)
        ]
    for loop in loops:
        loop.scheduler.check()
        assert loop.scheduler.blocks.gpu.num_free == loop.scheduler.blocks.gpu.num_blocks
        assert loop.scheduler.blocks.cpu.num_free == loop.scheduler.blocks.cpu.num_blocks


# Places in a step


def test_a_place_is_taken_until_the_step_that_holds_it_is_answered() -> None:
    """The worker knows a sequence that has ended until it is told to forget it."""
    loop = make_loop(make_scheduler(max_num_seqs=1))
    first, second = make_request([1] * 5, max_tokens=20), make_request([2] * 5, arrival=1.0)
    add(loop, first, second)
    loop.send()
    loop.scheduler.abort(first)
    assert not loop.send()
    assert second.sequences[0].status is SequenceStatus.WAITING
    loop.answer()
    assert loop.send()
    assert second.sequences[0].status is SequenceStatus.RUNNING
    loop.run()
    assert_done([loop], second)


def test_a_branch_that_ends_makes_place_for_another_request() -> None:
    loop = make_loop(make_scheduler(max_num_seqs=2), depth=1)
    pair, single = make_request([1] * 5, n=2, max_tokens=20), make_request([2] * 5, arrival=1.0)
    add(loop, pair, single)
    loop.turn()
    loop.scheduler.stop_sequence(pair, index=1, keep_tokens=1)
    loop.send()
    assert single.sequences[0].status is SequenceStatus.RUNNING
    loop.scheduler.check()
    loop.run()
    assert_done([loop], single)


# The prefix that a worker has


def test_each_worker_prefers_what_it_has_cached() -> None:
    warm, cold = make_workers(max_num_seqs=1)
    cache_prefix(warm)
    other = make_request([5] * 9, arrival=1.0)
    known = make_request([*PREFIX, 2], arrival=2.0)
    add(warm, other, known)
    warm.send()
    cold.send()
    assert known.num_cached_tokens == len(PREFIX)
    assert cold.scheduler.holds(other)
    for loop in (warm, cold):
        loop.run()
    assert_done([warm, cold], other, known)


def test_the_longest_prefix_wins_and_equals_go_in_order() -> None:
    loop = make_loop(make_scheduler(max_num_seqs=1))
    cache_prefix(loop)
    half, whole, also = (
        make_request([*PREFIX[:4], 9, 9], arrival=1.0),
        make_request([*PREFIX, 2], arrival=2.0),
        make_request([*PREFIX, 3], arrival=3.0),
    )
    add(loop, half, whole, also)
    loop.run()
    assert loop.ended[-3:] == [whole, also, half]
    assert_done([loop], half, whole, also)


def test_a_prompt_that_has_to_be_computed_whole_is_not_preferred() -> None:
    loop = make_loop(make_scheduler(max_num_seqs=1))
    cache_prefix(loop)
    first = make_request([5] * 9, arrival=1.0)
    whole = make_request([*PREFIX, 2], arrival=2.0, num_prompt_logprobs=0)
    add(loop, first, whole)
    loop.send()
    assert loop.scheduler.holds(first)


def test_a_request_is_passed_over_a_few_times_at_most() -> None:
    loop = make_loop(make_scheduler(max_num_seqs=1))
    cache_prefix(loop)
    patient = make_request([5] * 9, arrival=1.0)
    known = [make_request([*PREFIX, 2], arrival=2.0 + i) for i in range(2 * MAX_PASSED_OVER)]
    add(loop, patient, *known)
    loop.run()
    assert loop.ended.index(patient) - 1 == MAX_PASSED_OVER  # after the one that filled the cache
    assert patient.num_passed_over == MAX_PASSED_OVER
    assert_done([loop], patient, *known)


def test_a_request_passed_over_often_shields_those_behind_it_no_longer_than_itself() -> None:
    """No request passes it, and once it is gone those behind are passed over on their own."""
    loop = make_loop(make_scheduler(max_num_seqs=1))
    cache_prefix(loop)
    first, patient = make_request([6] * 9, arrival=1.0), make_request([5] * 9, arrival=2.0)
    patient.num_passed_over = MAX_PASSED_OVER
    known = make_request([*PREFIX, 2], arrival=3.0)
    add(loop, first, patient, known)
    loop.run()
    assert loop.ended[-3:] == [first, patient, known]
    assert_done([loop], first, patient, known)


def test_a_request_that_has_begun_is_not_passed_over() -> None:
    lost, loop = make_workers(max_num_seqs=1)
    cache_prefix(loop)
    begun = make_request([5] * 9, arrival=1.0)
    add(lost, begun)
    lost.send()
    known = make_request([*PREFIX, 2], arrival=2.0)
    add(loop, *lost.scheduler.evacuate(), known)
    loop.run()
    assert loop.ended[-2:] == [begun, known]
    assert begun.num_passed_over == 0
    assert_done([loop], begun, known)


def test_what_is_too_large_for_a_worker_is_in_nobodys_way_on_it() -> None:
    loop = make_loop(make_scheduler(max_num_seqs=1, num_gpu_blocks=6))
    cache_prefix(loop)
    first = make_request([5] * 9, arrival=1.0)
    too_large = make_request([*PREFIX, *PREFIX], max_tokens=16, arrival=2.0)
    known = make_request([*PREFIX[:4], 2], arrival=3.0)  # less of it
    add(loop, first, too_large, known)
    loop.run()
    assert loop.ended[-2:] == [known, first]
    assert too_large.num_passed_over == 0
    assert list(loop.scheduler.admission) == [too_large]
    assert_done([loop], first, known)


def test_a_search_has_as_many_places_as_it_has_beams() -> None:
    scheduler = make_scheduler(max_num_seqs=3)
    widths = [3, 4]
    searches = [make_request([1], beam_search=BeamSearchParams(width=width)) for width in widths]
    assert [scheduler.can_ever_take(search) for search in searches] == [True, False]


def test_a_worker_that_takes_another_makes_no_room_for_the_first() -> None:
    """So that the next worker may, before it takes those behind."""
    admission = AdmissionQueue()
    first = make_loop(make_scheduler(admission=admission, num_gpu_blocks=12, max_num_seqs=1))
    second = make_loop(make_scheduler(admission=admission, num_gpu_blocks=8))
    cache_prefix(first)
    busy = make_request([4] * 8, max_tokens=8)
    add(second, busy)
    second.send()
    large = make_request([5] * 24, max_tokens=4, arrival=1.0)
    known = make_request([*PREFIX, 2], arrival=2.0)
    small = make_request([6] * 3, max_tokens=1, arrival=3.0)
    add(first, large, known, small)
    first.send()
    assert first.scheduler.holds(known)
    second.send()
    assert small in admission
    for loop in (first, second):
        loop.run()
    assert_done([first, second], busy, large, known, small)


def test_a_tenant_is_not_passed_over_for_what_another_has_cached() -> None:
    policy = make_policy(PolicySettings(scheduling_policy="fair"))
    loop = make_loop(make_scheduler(admission=AdmissionQueue(policy), max_num_seqs=1))
    add(loop, make_request([*PREFIX, 1], max_tokens=1, tenant="b"))
    loop.run()
    first = make_request([5] * 9, arrival=1.0, tenant="a")
    known = make_request([*PREFIX, 2], arrival=2.0, tenant="b")
    add(loop, first, known)
    loop.run()
    assert loop.ended[-2:] == [first, known]


# A large request


def test_small_requests_do_not_pass_a_large_one_for_which_a_worker_makes_room() -> None:
    loop = make_loop(make_scheduler(num_gpu_blocks=7), depth=1)
    running = make_request([1] * 8, max_tokens=8)
    large = make_request([2] * 24, max_tokens=4, arrival=1.0)
    small = [make_request([3 + i] * 3, max_tokens=1, arrival=2.0 + i) for i in range(30)]
    add(loop, running, large)
    for one in small:  # with each step arrives one that would fit beside `running`
        add(loop, one)
        loop.turn()
    loop.run()
    assert large.times.first_scheduled is not None
    assert running.times.last_token is not None
    assert large.times.first_scheduled == running.times.last_token + 1
    for one in small:
        assert one.times.first_scheduled is not None
        assert one.times.first_scheduled >= large.times.first_scheduled
    assert_done([loop], running, large, *small)


def test_only_one_worker_makes_room_for_a_large_request_and_others_go_on() -> None:
    loops = first, second = make_workers(num_gpu_blocks=8)
    busy = [make_request([1 + i] * 8, max_tokens=8, arrival=float(i)) for i in range(2)]
    for loop, group in zip(loops, busy, strict=True):
        add(loop, group)
        loop.send()
    large = make_request([5] * 24, max_tokens=4, arrival=2.0)
    small = [make_request([6 + i] * 3, max_tokens=1, arrival=3.0 + i) for i in range(2)]
    add(first, large, *small)
    first.send()
    second.send()
    assert not first.scheduler.holds(small[0])
    assert second.scheduler.holds(small[0])
    for loop in loops:
        loop.run()
    assert_done(loops, large, *busy, *small)


@pytest.mark.parametrize("goes", ["drains", "is lost"])
def test_a_worker_that_goes_makes_room_for_nobody_any_more(goes: str) -> None:
    loops = first, second = make_workers(num_gpu_blocks=8)
    busy = [make_request([1 + i] * 8, max_tokens=8, arrival=float(i)) for i in range(2)]
    for loop, group in zip(loops, busy, strict=True):
        add(loop, group)
        loop.send()
    large, small = (
        make_request([5] * 24, max_tokens=4, arrival=2.0),
        make_request([6] * 3, max_tokens=1, arrival=3.0),
    )
    add(first, large, small)
    first.send()  # makes room for the large one
    if goes == "drains":
        first.scheduler.drain()
    else:
        add(second, *first.scheduler.evacuate())
    second.send()  # so this one does now
    assert not second.scheduler.holds(small)
    for loop in (first, second) if goes == "drains" else (second,):
        loop.run()
    assert_done([second], large, small, *busy)


# Groups that yield, and groups that come back


@pytest.mark.parametrize("policy", PolicyName)
def test_who_yields_is_the_youngest_of_the_lowest_priority(policy: str) -> None:
    admission = AdmissionQueue(make_policy(PolicySettings(scheduling_policy=policy)))
    scheduler = make_scheduler(
        admission=admission, num_gpu_blocks=9, mode=PreemptionMode.RECOMPUTE, prefix_caching=False
    )
    loop = make_loop(scheduler, depth=1)
    old, young, low = (
        make_request([1] * 8, max_tokens=16, tenant="a"),
        make_request([2] * 8, max_tokens=16, arrival=0.2, tenant="b"),
        make_request([3] * 11, max_tokens=16, arrival=0.1, tenant="a", priority=1),
    )
    add(loop, old, young, low)
    while not scheduler.preemption.num_preemptions:
        loop.turn()
    victim = low if policy in ("priority", "shortest-prompt") else young
    assert [group for group in (old, young, low) if group.num_preemptions] == [victim]
    loop.run()
    assert_done([loop], old, young, low)


@pytest.mark.parametrize("policy", PolicyName)
def test_nobody_comes_in_while_somebody_is_swapped(policy: str) -> None:
    admission = AdmissionQueue(make_policy(PolicySettings(scheduling_policy=policy)))
    scheduler = make_scheduler(admission=admission, num_gpu_blocks=6, num_cpu_blocks=6)
    loop = make_loop(scheduler, depth=1)
    groups = [make_request([i] * 7, max_tokens=12, arrival=float(i)) for i in (1, 2)]
    add(loop, *groups)
    while not scheduler.swapped:
        loop.turn()
    newcomer = make_request([9], max_tokens=2, arrival=9.0, priority=-1000, tenant="new")
    add(loop, newcomer)
    while scheduler.swapped:
        assert newcomer.sequences[0].status is SequenceStatus.WAITING
        loop.turn()
    loop.run()
    assert_done([loop], *groups, newcomer)


def test_a_swapped_group_that_can_never_come_back_fails_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = make_scheduler(num_gpu_blocks=6, num_cpu_blocks=6)
    loop = make_loop(scheduler, depth=1)
    old, young, newcomer = (
        make_request([i] * 7, max_tokens=12, arrival=float(i)) for i in (1, 2, 3)
    )
    add(loop, old, young)
    while not scheduler.swapped:
        loop.turn()
    add(loop, newcomer)
    swaps = scheduler.blocks.swaps
    can_swap_in = swaps.can_swap_in
    monkeypatch.setattr(
        swaps,
        "can_swap_in",
        lambda group: AllocStatus.NEVER if group is young else can_swap_in(group),
    )
    loop.run()
    assert young.failure is not None
    assert young.failure.code is Code.RESOURCE_EXHAUSTED
    assert loop.ended.count(young) == 1
    assert_done([loop], old, newcomer)


def test_nobody_comes_in_with_the_step_that_has_somebody_yield() -> None:
    scheduler = make_scheduler(num_gpu_blocks=6, mode=PreemptionMode.RECOMPUTE)
    loop = make_loop(scheduler, depth=1)
    groups = [make_request([i] * 7, max_tokens=12, arrival=float(i)) for i in (1, 2)]
    add(loop, *groups)
    newcomer = make_request([9], max_tokens=2, arrival=9.0)
    while not scheduler.preemption.num_preemptions:
        loop.answer()
        if scheduler.blocks.gpu.num_free == 0 and newcomer not in scheduler.admission:
            add(loop, newcomer)
        loop.send()
    assert scheduler.blocks.gpu.num_free
    assert newcomer.sequences[0].status is SequenceStatus.WAITING
    loop.run()
    assert_done([loop], *groups, newcomer)

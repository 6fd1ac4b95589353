"""Adapters take turns where a step may have fewer of them than run, and none waits long."""

from collections import defaultdict
from itertools import pairwise

import pytest

from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import (
    Loop,
    assert_all_free,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
)

ADAPTERS = frozenset("abcdefgh")


def make_limited(most: int | None, **options: int) -> Loop:
    loop = make_loop(make_scheduler(max_adapters=most, num_gpu_blocks=200, **options))
    loop.scheduler.admission.adapters = ADAPTERS
    return loop


def ask(loop: Loop, adapter: str, *, max_tokens: int = 20, prompt: int = 6) -> SequenceGroup:
    number = float(loop.now)
    group = make_request(
        [1 + len(adapter)] * prompt, max_tokens=max_tokens, arrival=number, adapter=adapter
    )
    loop.scheduler.admission.add(group)
    return group


def run(loop: Loop, *, most: int) -> dict[SequenceGroup, list[int]]:
    """Runs all; returns in which steps each request computes."""
    steps = defaultdict[SequenceGroup, list[int]](list)
    while True:
        while loop.send():
            plan = loop.scheduler.in_flight[-1]
            groups = {seq.group: None for seq in plan.seqs}
            assert len({group.request.adapter for group in groups} - {""}) <= most
            for group in groups:
                steps[group].append(plan.step_id)
            loop.scheduler.check()
        if loop.answer() is None:
            return steps


def longest_gap(steps: list[int]) -> int:
    return max((after - before for before, after in pairwise(steps)), default=0)


@pytest.mark.parametrize(("most", "num_steps"), [(1, 4), (2, 2), (3, 2), (4, 1), (8, 1)])
@pytest.mark.parametrize("depth", [1, 2])
def test_each_adapter_computes_within_as_many_steps_as_all_need(
    most: int, num_steps: int, depth: int
) -> None:
    loop = make_limited(most)
    loop.depth = depth
    groups = [ask(loop, adapter) for adapter in ("a", "b", "", "c", "d", "", "a")]
    steps = run(loop, most=most)
    for group in groups:
        bound = num_steps if group.request.adapter else 1
        assert longest_gap(steps[group]) <= bound
        assert steps[group][0] <= bound
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=20)]
    assert_all_free(loop)


def test_a_stream_of_requests_for_one_adapter_starves_no_other_and_not_the_base() -> None:
    loop = make_limited(1)
    long = ask(loop, "b", max_tokens=60)
    base = ask(loop, "", max_tokens=60)
    steps = defaultdict[SequenceGroup, list[int]](list)
    late = None
    for turn in range(200):
        ask(loop, "a", max_tokens=1)
        if turn == 50:
            late = ask(loop, "c", max_tokens=5)
        while loop.send():
            plan = loop.scheduler.in_flight[-1]
            for group in {seq.group for seq in plan.seqs}:
                steps[group].append(plan.step_id)
        loop.answer()
    assert late is not None
    assert longest_gap(steps[long]) <= 3
    assert longest_gap(steps[base]) == 1
    assert steps[late][0] <= 50 + 5 and longest_gap(steps[late]) <= 3
    loop.run()
    assert_all_free(loop)


def test_prompts_are_computed_in_chunks_by_turns() -> None:
    loop = make_limited(1, max_num_batched_tokens=16)
    groups = [ask(loop, adapter, prompt=60, max_tokens=4) for adapter in ("a", "b", "c")]
    steps = run(loop, most=1)
    for group in groups:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=4)]
        assert longest_gap(steps[group]) <= 3
    assert_all_free(loop)


def test_preempted_groups_come_back_in_their_turn() -> None:
    loop = make_loop(make_scheduler(max_adapters=1, num_gpu_blocks=9, num_cpu_blocks=20))
    loop.scheduler.admission.adapters = ADAPTERS
    groups = [ask(loop, adapter, prompt=7, max_tokens=12) for adapter in ("a", "b", "c", "")]
    run(loop, most=1)
    assert loop.scheduler.preemption.num_preemptions
    for group in groups:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=12)]
    assert_all_free(loop)


def test_without_a_limit_all_compute_in_each_step() -> None:
    loop = make_limited(None)
    groups = [ask(loop, adapter) for adapter in ("a", "b", "c", "d", "")]
    steps = run(loop, most=4)
    assert all(longest_gap(steps[group]) == 1 for group in groups)
    assert_all_free(loop)

"""Prompts that come while others decode are spread over steps; else they are computed at once."""

import pytest

from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import Loop, make_loop, make_request, make_scheduler, outputs

BUDGET = 64


def loop_of_decodes(*, prefill_spread_steps: int, num_decodes: int = 2) -> Loop:
    """A loop in which some requests have begun to decode."""
    scheduler = make_scheduler(
        max_num_batched_tokens=BUDGET, prefill_spread_steps=prefill_spread_steps, num_gpu_blocks=512
    )
    loop = make_loop(scheduler, depth=1)
    for i in range(num_decodes):
        scheduler.admission.add(make_request([i + 1] * 3, max_tokens=60))
    step(loop)
    return loop


def step(loop: Loop) -> StepPlan:
    assert loop.send()
    plan = loop.scheduler.in_flight[0]
    loop.answer()
    loop.scheduler.check()
    return plan


def num_prompt_tokens(plan: StepPlan) -> int:
    return sum(count for count in plan.num_new_tokens if count > 1)


def add_prompts(loop: Loop, count: int, length: int) -> list[SequenceGroup]:
    groups = [make_request([20 + i] * length, max_tokens=2) for i in range(count)]
    for group in groups:
        loop.scheduler.admission.add(group)
    return groups


def finish(loop: Loop, groups: list[SequenceGroup]) -> None:
    loop.run()
    for group in groups:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=2)]
    blocks = loop.scheduler.blocks.gpu
    assert blocks.num_free == blocks.num_blocks


def test_a_burst_goes_along_with_decodes_in_shares_of_what_is_left() -> None:
    loop = loop_of_decodes(prefill_spread_steps=8)
    groups = add_prompts(loop, count=5, length=64)
    first, second = step(loop), step(loop)
    assert num_prompt_tokens(first) == 320 // 8
    assert num_prompt_tokens(second) == 280 // 8
    assert first.num_new_tokens.count(1) == 2, "who decodes comes along"
    finish(loop, groups)


@pytest.mark.parametrize(
    ("num_decodes", "least"), [(2, BUDGET // 8), (8, BUDGET // 8), (12, 12), (16, BUDGET // 4)]
)
def test_a_share_is_an_eighth_to_a_quarter_of_a_step_as_more_decode(
    num_decodes: int, least: int
) -> None:
    loop = loop_of_decodes(prefill_spread_steps=8, num_decodes=num_decodes)
    groups = add_prompts(loop, count=1, length=2 * least + 3)
    assert [num_prompt_tokens(step(loop)) for _ in range(3)] == [least, least, 3]
    finish(loop, groups)


def test_nothing_is_spread_where_nobody_decodes() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=BUDGET, prefill_spread_steps=8)
    loop = make_loop(scheduler, depth=1)
    groups = add_prompts(loop, count=1, length=100)
    assert num_prompt_tokens(step(loop)) == BUDGET
    finish(loop, groups)


def test_a_spread_of_one_fills_steps() -> None:
    loop = loop_of_decodes(prefill_spread_steps=1)
    groups = add_prompts(loop, count=2, length=64)
    assert num_prompt_tokens(step(loop)) == BUDGET - 2
    finish(loop, groups)

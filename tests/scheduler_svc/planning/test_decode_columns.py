"""Sequences that only decode get one token a step, up to their last."""

import pytest

from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import make_loop, make_request, make_scheduler, outputs

PROMPT = [1, 2, 3, 4]


@pytest.mark.parametrize("max_tokens", [2, 3, 5, 13, 14, 40])
@pytest.mark.parametrize("depth", [1, 2])
def test_no_token_is_computed_after_the_last_that_is_drawn(max_tokens: int, depth: int) -> None:
    loop = make_loop(make_scheduler(block_size=16))
    loop.depth = depth
    groups = [make_request([*PROMPT, i], max_tokens=max_tokens + i) for i in range(2)]
    for group in groups:
        loop.scheduler.admission.add(group)
    num_computed = 0
    for _ in range(100):  # more steps than the longest takes
        while loop.send():
            num_computed += loop.scheduler.inflight[-1].total_tokens
        loop.answer()
    assert all(group.is_finished for group in groups)
    for group in groups:
        prompt = group.request.prompt_token_ids
        assert outputs(group) == [expected(prompt, num_tokens=group.max_tokens)]
    assert num_computed == sum(len(PROMPT) + group.max_tokens for group in groups)
    loop.scheduler.check()

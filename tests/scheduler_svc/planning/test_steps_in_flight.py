"""How long the steps in flight take, by what they compute."""

import pytest

from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.planning.steps_in_flight import StepsInFlight


@pytest.mark.parametrize(
    ("num_new_tokens", "seconds"),
    [([50], 0.5), ([1, 1], 0.25), ([1, 49], 0.5), ([], 0.0)],
    ids=["prompt", "decodes", "both", "none"],
)
def test_a_step_takes_as_long_as_its_prompts_or_as_decodes_do(
    num_new_tokens: list[int], seconds: float
) -> None:
    cost = CostModel(prefill_tokens_per_s=100)
    cost.observe_decode(num_seqs=2, seconds=0.25)
    inflight = StepsInFlight(cost)
    for _ in range(2):
        plan = inflight.new_plan(0.0, token_budget=100)
        plan.num_new_tokens += num_new_tokens
        plan.total_tokens = sum(num_new_tokens)
        inflight.add(plan)
    assert inflight.expected_s() == 2 * seconds

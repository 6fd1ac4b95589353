"""What no worker could serve is refused by name, before it is in a step with others."""

import math
from typing import Any

import pytest

from signalbox_contract.sampling_params import SamplingParams
from signalbox_scheduler.requests.request_validation import find_fault
from tests.scheduler_svc.make import MODEL, make_arrival


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("temperature", [0.0, 1e30], [-0.1, math.inf, math.nan]),
        ("top_p", [1e-6, 1.0], [0.0, 1.1, math.nan]),
        ("typical_p", [1e-6, 1.0], [0.0, 1.1, math.nan]),
        ("min_p", [0.0, 1.0], [-0.1, 1.1, math.nan]),
        ("repetition_penalty", [1e-6, 10.0], [0.0, 10.1, math.nan]),
        ("presence_penalty", [-2.0, 2.0], [-2.1, 2.1, math.nan]),
        ("frequency_penalty", [-2.0, 2.0], [-2.1, 2.1, math.nan]),
        (
            "logit_bias",
            [((1, 100.0), (2, -100.0))],
            [((1, 100.1),), ((1, -100.1),), ((1, math.nan),), ((1, 0.0), (1, 0.0))],
        ),
        ("num_logprobs", [0, MODEL.vocab_size], [MODEL.vocab_size + 1]),
        ("num_prompt_logprobs", [0, MODEL.vocab_size], [MODEL.vocab_size + 1]),
    ],
)
def test_a_parameter_is_allowed_up_to_its_bounds(
    name: str, allowed: list[Any], refused: list[Any]
) -> None:
    def fault(value: Any) -> str | None:
        params = SamplingParams(**{name: value})
        return find_fault(make_arrival([1], params=params).request, MODEL)

    assert [fault(value) for value in allowed] == [None] * len(allowed)
    assert [name in (fault(value) or "") for value in refused] == [True] * len(refused)

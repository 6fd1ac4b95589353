"""What no worker could serve is refused by name, before it is in a step with others.

The bounds of sampling parameters have their tests in tests/contract/test_sampling_params.py.
"""

import math

import pytest

from signalbox_contract.sampling_params import SamplingParams
from signalbox_scheduler.requests.request_validation import find_fault
from tests.scheduler_svc.make import MODEL, make_arrival


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [("temperature", 1e30, math.nan), ("num_logprobs", MODEL.vocab_size, MODEL.vocab_size + 1)],
)
def test_sampling_parameters_are_checked_for_the_model(
    name: str, allowed: float, refused: float
) -> None:
    def fault(value: float) -> str | None:
        params = SamplingParams(**{name: value})  # type: ignore[arg-type]
        return find_fault(make_arrival([1], params=params).request, MODEL)

    assert fault(allowed) is None
    assert f"sampling_params.{name}" in (fault(refused) or "")


@pytest.mark.parametrize(("token_id", "is_served"), [(96, True), (97, False)])
def test_a_prediction_has_tokens_of_the_vocabulary(token_id: int, is_served: bool) -> None:
    fault = find_fault(make_arrival([1], prediction=(3, token_id)).request, MODEL)
    assert (fault is None) is is_served
    assert is_served or "prediction" in str(fault)

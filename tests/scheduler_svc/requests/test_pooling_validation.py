"""What no worker could pool is refused by name, and so is what must be pooled and is not."""

from dataclasses import replace
from typing import Any

import pytest

from signalbox_contract.pooling import PoolingModel, PoolingParams
from signalbox_contract.request import BeamSearchParams, DeliveredSequence
from signalbox_contract.sampling_params import SamplingParams
from signalbox_scheduler.requests.request_validation import find_fault
from tests.scheduler_svc.make import MODEL, make_arrival

POOLING_MODEL = replace(
    MODEL, pooling=PoolingModel(task="embed", num_outputs=2, reads_all_tokens=True)
)
PARAMS = PoolingParams(num_first_segment_tokens=4, num_skipped_tokens=3)


def fault(*, num_tokens: int = 4, **fields: Any) -> str | None:
    """Returns what is wrong with a request to a model that pools."""
    defaults: dict[str, Any] = {"max_tokens": 1, "pooling": PARAMS}
    group = make_arrival([1] * num_tokens, **defaults | fields)
    return find_fault(group.request, POOLING_MODEL)


def test_a_prompt_may_fill_the_models_window_as_it_generates_nothing() -> None:
    assert fault() is None
    assert fault(num_tokens=128) is None
    assert fault(num_tokens=129) == "the prompt has 129 tokens; the model's window has 128"


def test_a_request_is_of_its_models_kind() -> None:
    found = fault(pooling=None)
    assert found is not None
    assert found.startswith("pooling is unset")
    found = find_fault(make_arrival([1], max_tokens=1, pooling=PARAMS).request, MODEL)
    assert found is not None
    assert found.startswith("pooling is set")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_sequences": 2}, "num_sequences is 2, must be 1"),
        ({"max_tokens": 2}, "max_tokens is 2, must be 1"),
        ({"beam_search": BeamSearchParams(width=1)}, "beam_search is set"),
        ({"prediction": (1,)}, "prediction is set"),
        ({"delivered": [DeliveredSequence([1], None)], "attempt": 1}, "delivered is set"),
        ({"params": SamplingParams(structured_output=("regex", "a"))}, "structured_output is set"),
        ({"params": SamplingParams(num_logprobs=0)}, "num_logprobs is set"),
        ({"params": SamplingParams(num_prompt_logprobs=0)}, "num_prompt_logprobs is set"),
        (
            {"pooling": PoolingParams(num_first_segment_tokens=5)},
            "pooling.num_first_segment_tokens is 5, must be at most 4",
        ),
        (
            {"pooling": PoolingParams(num_skipped_tokens=4)},
            "pooling.num_skipped_tokens is 4, must be at most 3",
        ),
        (
            {"pooling": PoolingParams(is_per_token=True)},
            "pooling.is_per_token is set, must be unset beyond 0 prompt tokens",
        ),
    ],
)
def test_what_goes_with_tokens_alone_is_refused(fields: dict[str, Any], named: str) -> None:
    found = fault(**fields)
    assert found is not None
    assert found.startswith(named)


def test_vectors_of_tokens_are_bounded_and_all_that_some_models_make() -> None:
    wide = PoolingModel(task="token_embed", num_outputs=1 << 20, num_token_outputs=1 << 20)
    model = replace(MODEL, pooling=replace(wide, is_bidirectional=True, reads_all_tokens=True))
    request = make_arrival([1] * 8, max_tokens=1, pooling=PoolingParams(is_per_token=True)).request
    assert find_fault(request, model) is None
    longer = replace(request, prompt_token_ids=[1] * 9)
    assert "beyond 8 prompt tokens" in (find_fault(longer, model) or "")
    whole = replace(request, pooling=PoolingParams())
    assert "is_per_token is unset" in (find_fault(whole, model) or "")


def test_segments_are_for_vectors_that_take_no_prefix_from_the_cache() -> None:
    last = replace(MODEL, pooling=PoolingModel(task="embed", num_outputs=2))
    request = make_arrival([1] * 4, max_tokens=1, pooling=PoolingParams()).request
    assert find_fault(request, last) is None
    found = find_fault(replace(request, pooling=PARAMS), last)
    assert found is not None
    assert found.startswith("pooling.num_first_segment_tokens is set")

"""The question of `signalbox demo` has one likely answer, so that each form gives the same one."""

from typing import Any

import pytest

from benchmarks.perplexity import FORMS
from signalbox.commands.demo import QUESTION
from signalbox.llm import LLM, SamplingParams
from tests.transformers_demo import DEMO

pytestmark = pytest.mark.model

LEAST_MARGIN = 0.5
"""Between the log probabilities of the first two candidates: rounding moves them by up to 0.2."""


@pytest.mark.parametrize(
    "form",
    [{}, {"dtype": "float32"}, FORMS["int4"], FORMS["int8_kv"]],
    ids=["default", "float32", "int4", "int8_kv"],
)
def test_no_token_of_the_answer_is_a_near_tie(form: dict[str, Any]) -> None:
    asks = SamplingParams(temperature=0, max_tokens=16, logprobs=2)
    with LLM(str(DEMO), device="cpu", kv_cache_memory=0.1, max_model_len=512, **form) as llm:
        (answer,) = llm.chat([{"role": "user", "content": QUESTION}], asks, use_tqdm=False)
    (found,) = answer.outputs
    assert (found.text, found.finish_reason) == ("The capital of South Korea is Seoul.", "stop")
    assert found.logprobs is not None and len(found.logprobs) == len(found.token_ids) == 9
    for candidates in found.logprobs:  # the last is of the end
        first, second = sorted((one.logprob for one in candidates.values()), reverse=True)
        assert first - second > LEAST_MARGIN

"""The question of `signalbox demo` and of the README is answered rightly in other forms, too."""

import pytest

from benchmarks.perplexity import FORMS
from signalbox.commands.demo import MAX_TOKENS, QUESTION
from signalbox.llm import LLM, SamplingParams
from tests.native_kernels import skip_without_native_kernels
from tests.transformers_demo import DEMO

skip_without_native_kernels()

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not DEMO.exists(), reason="run `make model`"),
]


@pytest.mark.parametrize("form", ["int4", "int8_kv"])
def test_the_question_is_answered_rightly_in_forms_with_other_arithmetic(form: str) -> None:
    with LLM(str(DEMO), kv_cache_memory=0.1, max_model_len=512, **FORMS[form]) as llm:
        asks = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
        (answer,) = llm.chat([{"role": "user", "content": QUESTION}], asks, use_tqdm=False)
    assert answer.outputs[0].text == "The capital of South Korea is Seoul."
    assert answer.outputs[0].finish_reason == "stop"

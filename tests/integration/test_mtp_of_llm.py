"""An MTP layer through `LLM`: preemption, forks and found prefixes change no answer."""

from pathlib import Path

import pytest

from tests.gpu_worker.mtp_models import make_glm
from tests.integration.test_draft_models_of_llm import generate
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


@pytest.mark.parametrize("is_right", [True, False])
def test_answers_stay_the_same(tmp_path: Path, *, is_right: bool) -> None:
    make_glm(tmp_path, is_right=is_right)
    expected, _ = generate(tmp_path, speculation=False)
    config = {"method": "mtp", "num_speculative_tokens": 2}
    answers, counts = generate(tmp_path, speculative_config=config)
    assert answers == expected
    assert counts["vllm:spec_decode_num_draft_tokens"] > 0
    if is_right:
        share = (
            counts["vllm:spec_decode_num_accepted_tokens"]
            / counts["vllm:spec_decode_num_draft_tokens"]
        )
        assert share > 0.3, "of greedy requests, which are half, nearly all are accepted"

"""`LLM` gives the greedy tokens of transformers for families that run through it."""

from pathlib import Path
from typing import Any

import pytest

from signalbox import LLM, SamplingParams
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.tiny_models import make_model, reference_tokens
from tests.signalbox.llm.make import assert_at_rest, tokens_of

pytestmark = pytest.mark.slow

NUM_TOKENS = 10


@pytest.mark.parametrize(
    "family", ["gpt-oss", "olmo2", "cohere", "cohere2", "deepseek-v2", "deepseek-v3"]
)
def test_tokens_of_a_batch_in_chunks_equal_those_of_transformers(
    family: str, tmp_path: Path
) -> None:
    reference = make_model(tmp_path, family)
    prompts = make_prompts(1, 5, 17, 40, 33)
    given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(
        str(tmp_path),
        dtype="float32",
        device="cpu",
        kv_cache_memory=0.05,
        max_num_seqs=4,
        max_num_batched_tokens=16,
    ) as llm:
        outputs = llm.generate(given, params, use_tqdm=False)
        assert tokens_of(outputs) == [
            reference_tokens(reference, prompt, NUM_TOKENS) for prompt in prompts
        ]
        assert_at_rest(llm.llm_engine)

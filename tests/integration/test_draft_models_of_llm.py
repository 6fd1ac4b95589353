"""A draft model through `LLM`: preemption, forks and found prefixes change no answer."""

from pathlib import Path
from typing import Any

import pytest

from signalbox import LLM, SamplingParams
from signalbox.llm.metrics import Counter
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.tiny_models import make_llama
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

Answers = list[list[list[int]]]


def generate(path: Path, **options: Any) -> tuple[Answers, dict[str, float]]:
    """Returns the tokens of each branch of each request, and the engine's counts."""
    prompts = make_prompts(5, 40, 70, 70)
    prompts[3][:50] = prompts[2][:50]
    params = [
        SamplingParams(temperature=i % 2, seed=i, n=1 + i % 2, max_tokens=24, ignore_eos=True)
        for i in range(4)
    ]
    llm = LLM(
        str(path),
        dtype="float32",
        kv_cache_memory=130 / (1 << 20),
        max_model_len=128,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        **options,
    )
    try:
        answers: Answers = []
        for _ in range(2):  # then prefixes are found
            requests = [{"prompt_token_ids": one} for one in prompts]
            for output in llm.generate(requests, params, use_tqdm=False):
                answers.append([list(one.token_ids) for one in output.outputs])
        scheduler = llm.llm_engine._core.scheduler
        assert scheduler.preemption.num_preemptions
        assert scheduler.planner.num_prefix_hits
        return answers, {
            one.name: one.value for one in llm.get_metrics() if isinstance(one, Counter)
        }
    finally:
        llm.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served")
    make_llama(path)
    return path


@pytest.fixture(scope="module")
def expected(served: Path) -> Answers:
    return generate(served)[0]


@pytest.mark.parametrize("is_good", [True, False])
def test_answers_stay_the_same(
    served: Path, expected: Answers, tmp_path: Path, *, is_good: bool
) -> None:
    make_llama(tmp_path, num_hidden_layers=1)
    draft_model = served if is_good else tmp_path
    answers, counts = generate(served, draft_model=str(draft_model))
    assert answers == expected
    assert counts["vllm:spec_decode_num_draft_tokens"] > 0
    assert not is_good or counts["vllm:spec_decode_num_accepted_tokens"] > 0

"""Models with recurrent layers through `LLM`: prefixes that are found, and a pool that is too small
for all sequences, give the tokens of transformers."""

from pathlib import Path

import pytest

from signalbox import LLM, SamplingParams
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.tiny_models import make_model, reference_tokens
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("family", ["lfm2", "lfm2-moe", "granite-hybrid", "qwen3.5"])
@pytest.mark.parametrize("kib", [4096, 120])
def test_tokens_are_those_of_transformers(family: str, kib: int, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family)
    prompts = make_prompts(5, 40, 70, 70)
    prompts[3][:50] = prompts[2][:50]
    expected = [reference_tokens(reference, prompt, 24) for prompt in prompts]
    llm = LLM(
        str(tmp_path),
        dtype="float32",
        kv_cache_memory=kib / (1 << 20),
        max_model_len=128,
        max_num_batched_tokens=64,
        max_num_seqs=4,
    )
    try:
        for _ in range(2):  # then prefixes are found
            outputs = llm.generate([{"prompt_token_ids": one} for one in prompts], GREEDY)
            assert [list(one.outputs[0].token_ids) for one in outputs] == expected
    finally:
        llm.close()

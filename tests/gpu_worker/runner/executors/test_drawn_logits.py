"""Logits of drawn tokens: the model's own, under any rules, and the same bits in any batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from signalbox_contract.sampling_params import SamplingParams
from signalbox_kernels.native import ISA_VARIABLE, Isa
from signalbox_worker.device.parallel_config import ParallelConfig
from tests.gpu_worker.draft_loops import Answer, Loop, Wanted, assert_drafts_change_nothing
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import available_isas, skip_without_native_kernels
from tests.rounding import LOGITS

skip_without_native_kernels()

FEW = tuple(range(40, 60))
RULES = [
    SamplingParams(),
    SamplingParams(temperature=1.5, seed=3, top_k=20),
    SamplingParams(repetition_penalty=1.7, presence_penalty=1.5, frequency_penalty=0.8),
    SamplingParams(logit_bias=((7, 60.0), (9, 60.0)), bad_words=((7, 9), (9, 9))),
    SamplingParams(temperature=0.9, seed=4, allowed_token_ids=FEW, num_logprobs=2),
    SamplingParams(min_tokens=6, stop_token_ids=FEW),
]


def make_wanted() -> list[Wanted]:
    """Returns a request under each of the rules, and ones that return no logits: their prompts are
    computed beside draws, and the logits of one's prompt are computed after those."""
    pairs = zip(make_prompts(1, 17, 40, 9, 5, 20), RULES, strict=True)
    wanted = [
        Wanted(prompt=prompt, params=params, num_samples=1 + i % 2, returns_logits=True)
        for i, (prompt, params) in enumerate(pairs)
    ]
    asks = SamplingParams(temperature=1.0, num_prompt_logprobs=1)
    others = make_prompts(33, 12)
    wanted.insert(3, Wanted(prompt=others[0], params=asks))
    return [*wanted, Wanted(prompt=others[1])]


def load(path: Path, **options: Any) -> Any:
    return make_runner(path, **{"block_size": 16, "cpu_backend": "native", **options})


def floats(answer: Answer) -> list[float]:
    return np.array(answer.logits, dtype=np.uint32).view(np.float32).tolist()


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_logits_are_those_of_transformers_before_any_rule(backend: str, tmp_path: Path) -> None:
    reference, wanted = make_model(tmp_path, "llama3", head_dim=16), make_wanted()
    loop = Loop(load(tmp_path, cpu_backend=backend))
    answers = loop.generate(wanted, num_tokens=8)
    for key, text in loop.texts().items():
        if not wanted[key // 10].returns_logits:
            continue
        with torch.inference_mode():
            logits = reference(torch.tensor([text])).logits[0].float()
        first = len(loop.prompts[key])
        expected = [float(logits[i - 1, text[i]]) for i in range(first, len(text))]
        assert len(expected) == 8
        assert floats(answers[key]) == pytest.approx(expected, abs=LOGITS)


@pytest.mark.slow
@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_on_neither_batch_nor_drafts(
    native_tiny: Path, isa: Isa, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa.name)
    runner, wanted = load(native_tiny, dtype=dtype, num_threads=2), make_wanted()
    together = Loop(runner).generate(wanted, num_tokens=12)
    alone = {
        10 * i + branch: answer
        for i, one in enumerate(wanted)
        for branch, answer in Loop(runner).generate([one], num_tokens=12).items()
    }
    assert alone == together
    assert_drafts_change_nothing(runner, wanted, seed=6, num_tokens=12)


@pytest.mark.parametrize(
    "parallel", [ParallelConfig(tensor_parallel_size=2), ParallelConfig(pipeline_parallel_size=2)]
)
def test_ranks_and_stages_return_them(native_tiny: Path, parallel: ParallelConfig) -> None:
    wanted = make_wanted()
    expected = Loop(load(native_tiny)).generate(wanted, num_tokens=6)
    runner = load_threads(make_start(native_tiny, parallel, kv_bytes=1 << 22))
    runner.init_cache_engine(num_gpu_blocks=100, num_cpu_blocks=0)
    found = Loop(runner).generate(wanted, num_tokens=6)
    runner.close()
    for key, answer in expected.items():
        assert found[key].token_ids == answer.token_ids
        if wanted[key // 10].returns_logits:
            assert floats(found[key]) == pytest.approx(floats(answer), abs=LOGITS)

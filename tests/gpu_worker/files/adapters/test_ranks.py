"""Tensor-parallel ranks and pipeline stages have their shares of adapters."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from signalbox import LLM, SamplingParams
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.lora.request import LoRARequest
from signalbox_worker.device.parallel_config import ParallelConfig
from tests.gpu_worker.files.adapters.peft_adapters import (
    FUSED_KINDS,
    GLM_KINDS,
    KINDS,
    make_adapters,
    peft_tokens,
)
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels
from tests.signalbox.llm.make import assert_at_rest, tokens_of

pytestmark = pytest.mark.slow

NUM_TOKENS = 8
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


@pytest.mark.parametrize(
    ("family", "backend", "sizes"),
    [
        ("llama3", "torch", [(2, 1), (1, 3), (2, 2)]),
        ("llama3", "native", [(1, 1), (1, 3), (2, 1), (2, 2)]),
        ("gemma3", "torch", [(1, 1), (2, 2)]),
        ("gemma3", "native", [(1, 1), (2, 1), (1, 3)]),
        ("granite", "torch", [(1, 1), (2, 1), (1, 3)]),
        ("granite", "native", [(1, 1), (2, 1), (1, 3)]),
        ("phi3", "torch", [(1, 1), (2, 1), (1, 3)]),
        ("phi3", "native", [(1, 1), (2, 1), (1, 3)]),
        ("glm4", "native", [(1, 1), (2, 1)]),
    ],
)
def test_ranks_and_stages_give_the_tokens_of_peft(
    family: str, backend: str, sizes: list[tuple[int, int]], tmp_path: Path
) -> None:
    """With adapters of the start on all, and of run time on the last."""
    if backend == "native":
        skip_without_native_kernels()
    model = make_model(tmp_path, family, head_dim=16)
    kinds = {"phi3": FUSED_KINDS, "glm4": GLM_KINDS}.get(family, KINDS[:3])
    lora = make_adapters(model, tmp_path / "adapters", kinds)
    prompts: Any = [{"prompt_token_ids": ids} for ids in make_prompts(17, 5, 30)]
    requests = [
        LoRARequest(name, number, path)
        for number, (name, path) in enumerate((one.split("=") for one in lora), start=1)
    ]
    expected = [
        peft_tokens(model, Path(request.path), [prompt["prompt_token_ids"]], NUM_TOKENS)[0]
        for request, prompt in zip(requests, prompts, strict=True)
    ]
    loaded = {"max_lora_rank": 16, "max_cpu_loras": 8}
    for given, several in (({"lora": lora}, sizes), (loaded, sizes[-1:])):
        start = make_start(tmp_path, ParallelConfig(), cpu_backend=backend, **given)
        for tp, pp in several:
            make = partial(load_threads, with_sizes(start, tp, pp))
            with LLM._from_runner(make, CoreConfig(enable_lora=True)) as llm:
                outputs = llm.generate(prompts, PARAMS, use_tqdm=False, lora_request=requests)
                assert tokens_of(outputs) == expected, f"{tp} x {pp}, {given}"
                assert_at_rest(llm.llm_engine)

"""Tensor-parallel ranks and pipeline stages round activations as their checkpoint prescribes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from signalbox import LLM, SamplingParams
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.lora.request import LoRARequest
from signalbox_worker.device.parallel_config import ParallelConfig
from tests.gpu_worker.files.adapters.peft_adapters import KINDS, make_adapter, with_adapter
from tests.gpu_worker.files.quantised.make_rounded import ROUNDED, copy_checkpoint
from tests.gpu_worker.quantised_models import (
    W8A8,
    Encode,
    by_block,
    by_row,
    in_w8a8,
    save_quantised,
)
from tests.gpu_worker.rounded_products import (
    PROMPTS,
    SHARE,
    divide_rounding,
    reference_log_probabilities,
    share_of_equal,
)
from tests.gpu_worker.runner.ranks.test_rank_matrix import prompt_logprobs_of
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.gpu_worker.tiny_models import make_tokenizer
from tests.native_kernels import skip_without_native_kernels
from tests.signalbox.llm.make import assert_at_rest

pytestmark = pytest.mark.slow

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
FORMS: dict[str, tuple[Encode, dict[str, Any]]] = {
    "fp8": (by_row, FP8),
    "fp8 in blocks": (by_block, FP8 | {"weight_block_size": [128, 128]}),
    "w8a8": (in_w8a8, W8A8),
}


@contextmanager
def llm_of(path: Path, backend: str, tp: int, pp: int) -> Iterator[LLM]:
    start = make_start(
        path, ParallelConfig(), cpu_backend=backend, max_lora_rank=16, max_cpu_loras=2
    )
    load = partial(load_threads, with_sizes(start, tp, pp))
    with LLM._from_runner(load, CoreConfig(enable_lora=True)) as llm:
        yield llm
        assert_at_rest(llm.llm_engine)


def log_probabilities(llm: LLM, adapters: list[LoRARequest | None]) -> Tensor:
    """Returns those of each token of PROMPTS but the first, [num_adapters, num_prompts, 2].

    All are computed in one batch, as far as that goes.
    """
    prompts: Any = [{"prompt_token_ids": ids} for _ in adapters for ids in PROMPTS]
    requests = [adapter for adapter in adapters for _ in PROMPTS]
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=requests)
    return torch.tensor(prompt_logprobs_of(outputs)).reshape(len(adapters), len(PROMPTS), 2)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("form", FORMS)
def test_each_rank_rounds_the_columns_that_it_has(form: str, backend: str, tmp_path: Path) -> None:
    """The scale of a token is that of a rank's columns where ranks sum products. Adapters take
    activations as they are."""
    if backend == "native":
        skip_without_native_kernels()
    reference = save_quantised(tmp_path, "llama2", *FORMS[form], hidden_size=256)
    make_adapter(reference, tmp_path / "adapter", **KINDS[0] | {"lora_alpha": 1})
    adapter = LoRARequest("mine", 1, str(tmp_path / "adapter"))
    expected: dict[int, Tensor] = {}
    for tp, pp in ((1, 3), (2, 1), (2, 2)):
        divide_rounding(reference, tp)
        expected[tp] = reference_log_probabilities(reference)
        with with_adapter(reference, Path(adapter.path)) as adapted:
            with_mine = reference_log_probabilities(adapted)
        assert share_of_equal(with_mine, expected[tp]) == 0
        with llm_of(tmp_path, backend, tp, pp) as llm:
            of_base, of_adapter = log_probabilities(llm, [None, adapter])
        assert share_of_equal(of_base, expected[tp]) > SHARE, f"{tp} x {pp}"
        assert share_of_equal(of_adapter, with_mine) > SHARE, f"{tp} x {pp}"
    is_apart = share_of_equal(expected[1], expected[2]) < 0.1
    assert is_apart == (form != "fp8 in blocks")  # whose groups no rank divides


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", ["ct_fp8_static", "ct_w8a8_static"])
def test_static_scales_are_those_of_all_ranks(name: str, backend: str, tmp_path: Path) -> None:
    if backend == "native":
        skip_without_native_kernels()
    copy_checkpoint(name, tmp_path)
    make_tokenizer(tmp_path)
    expected = torch.tensor(json.loads(ROUNDED.read_text())["log probabilities"][name])
    for tp, pp in ((1, 2), (2, 1), (2, 2)):
        with llm_of(tmp_path, backend, tp, pp) as llm:
            (found,) = log_probabilities(llm, [None])
        assert share_of_equal(found, expected) > SHARE, f"{tp} x {pp}"

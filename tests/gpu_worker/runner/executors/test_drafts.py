"""Drafts change no bit in any form of weights and of the KV cache, nor through ranks."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.drafts.chain import ProposerChain
from tests.gpu_worker.draft_loops import MOST, Loop, Wanted, assert_drafts_change_nothing
from tests.gpu_worker.files.adapters.peft_adapters import make_adapters
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start
from tests.gpu_worker.tiny_models import LATENTS, make_llama, make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


WIDE = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
"""Heads in whose blocks of bfloat16 a state of a hybrid model has room."""


def make_wanted(*adapters: str) -> list[Wanted]:
    """Returns greedy and random requests, of prompts within a block and beyond a chunk of keys."""
    return [
        Wanted(
            prompt=prompt,
            params=SamplingParams(
                temperature=i % 2, seed=i, num_logprobs=3, repetition_penalty=1.1
            ),
            num_samples=1 + i % 2,
            adapter=adapters[i] if i < len(adapters) else "",
            returns_logits=i != 1,
        )
        for i, prompt in enumerate(make_prompts(1, 17, 40, 250))
    ]


def load(path: Path, **options: Any) -> Any:
    return make_runner(path, **{"block_size": 16, "cpu_backend": "native", **options})


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
@pytest.mark.parametrize(
    "form",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "int16", "quantization": "int8"},
        {"dtype": "auto", "quantization": "int8"},
        {"dtype": "auto", "quantization": "int4"},
    ],
    ids=lambda form: "-".join(form.values()),
)
def test_forms(form: dict[str, str], kv_cache_dtype: str, tmp_path: Path) -> None:
    make_llama(tmp_path, max_position_embeddings=512, num_hidden_layers=2)
    runner = load(tmp_path, kv_cache_dtype=kv_cache_dtype, **form)
    assert_drafts_change_nothing(runner, make_wanted(), seed=1)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("gemma3", {}),
        ("qwen3-moe", {}),
        ("deepseek-v2", LATENTS),
        ("lfm2", WIDE),
        ("granite-hybrid", WIDE | {"mamba_n_groups": 1}),
        ("qwen3.5", WIDE),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_families(family: str, fields: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    make_model(tmp_path, family, **{"max_position_embeddings": 512, **fields})
    assert_drafts_change_nothing(load(tmp_path, dtype=dtype), make_wanted(), seed=2)


def test_adapters(tmp_path: Path) -> None:
    model = make_model(tmp_path, "llama3", head_dim=16, max_position_embeddings=512)
    lora = make_adapters(model, tmp_path / "adapters")
    runner = load(tmp_path, lora=lora)
    names = [one.sha256 for one in runner.model.adapters]
    assert_drafts_change_nothing(runner, make_wanted(*names[:2]), seed=3)


def test_pytorch_draws_the_same_tokens(tiny: Path) -> None:
    runner = load(tiny, cpu_backend="torch", num_threads=1)
    wanted = [
        Wanted(prompt=prompt, params=SamplingParams(temperature=i % 2, seed=i))
        for i, prompt in enumerate(make_prompts(1, 17, 40))
    ]
    assert_drafts_change_nothing(runner, wanted, seed=4, has_equal_bits=False)


FOUR = SpeculationConfig(num_tokens=4)


def test_a_worker_announces_its_drafts(native_tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert load(native_tiny).profile().max_draft_tokens == 0
        assert "drafts" not in caplog.text
        runner = load(native_tiny, speculation=FOUR)
        assert runner.profile().max_draft_tokens == 4
    assert isinstance(runner.make_proposer(), ProposerChain)
    assert "no drafts" not in caplog.text


def test_what_texts_propose_changes_nothing(native_tiny: Path) -> None:
    runner = load(native_tiny, speculation=SpeculationConfig(num_tokens=MOST))
    wanted = [Wanted(prompt=[5, 6, 7] * 9), Wanted(prompt=[9, 3] * 20)]
    without, found = Loop(runner), Loop(runner, proposer=runner.make_proposer())
    expected = without.generate(wanted, num_tokens=60)
    assert found.generate(wanted, num_tokens=60, limit=lambda: MOST) == expected
    assert found.num_drafts


def test_ranks_divide_drafts_as_any_tokens(native_tiny: Path) -> None:
    start = make_start(native_tiny, ParallelConfig(tensor_parallel_size=2), kv_bytes=1 << 22)
    runner = load_threads(replace(start, speculation=FOUR))
    assert runner.profile().max_draft_tokens == 4
    assert isinstance(runner.make_proposer(), ProposerChain)
    runner.init_cache_engine(num_gpu_blocks=100, num_cpu_blocks=0)
    assert_drafts_change_nothing(runner, make_wanted()[:3], seed=5)
    runner.close()

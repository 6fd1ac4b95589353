"""The native program beside PyTorch: which of them runs a model, and that its tokens are those of
PyTorch and transformers.
"""

import logging
from pathlib import Path
from typing import Any

import pytest

from signalbox_contract.sampling_params import SamplingParams
from signalbox_kernels.native import NativeUnavailable
from signalbox_worker.config import ModelError
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.native import eligibility
from tests.gpu_worker.generation import Driver, make_batch, make_runs, make_sequence
from tests.gpu_worker.model_runners import WHOLE, assert_greedy, make_prompts, make_runner
from tests.gpu_worker.runner.loading.gguf_files import make_gguf
from tests.gpu_worker.runner.native.llm_process import PROMPTS, serve
from tests.gpu_worker.runner.native.test_eligibility import reason
from tests.gpu_worker.tiny_models import LATENTS, architecture_of, make_model, reference_tokens
from tests.native_kernels import skip_without_native_kernels
from tests.rounding import LOGITS

pytestmark = pytest.mark.slow

skip_without_native_kernels()

FAMILIES = {
    "llama3": {"head_dim": 16},
    "llama2": {"head_dim": 64},
    "llama-linear": {"head_dim": 48, "num_attention_heads": 8, "num_key_value_heads": 1},
    "llama-yarn": {"head_dim": 32},
    "llama-biased": {"head_dim": 80, "hidden_size": 54, "intermediate_size": 77},
    "mistral": {"head_dim": 96},
    "qwen2": {"head_dim": 128},
    "qwen2-sliding": {"head_dim": 32},
    "qwen3": {"head_dim": 16},
    "granite": {"head_dim": 16},
    "gemma": {"intermediate_size": 52},
    "gemma2": {"hidden_size": 36},
    "gemma3": {"head_dim": 48},
    "phi3": {"head_dim": 16},
    "glm": {},
    "glm4": {},
    "smollm3": {"head_dim": 16},
    "granite-moe": {"hidden_size": 96, "intermediate_size": 40},
    "mixtral": {"head_dim": 16},
    "qwen2-moe": {"head_dim": 16, "norm_topk_prob": True},
    "qwen3-moe": {"hidden_size": 52, "moe_intermediate_size": 20},
    "qwen3-moe-partly": {},
    "olmoe": {"hidden_size": 96},
}


def make_native_runner(path: Path, **options: Any) -> LocalRunner:
    return make_runner(path, **{"cpu_backend": "native", "block_size": 16} | options)


@pytest.mark.compares(how="natively", of=architecture_of)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers(family: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family, **FAMILIES[family])
    prompts = make_prompts(1, 5, 16, 17, 33, 70, 200)
    expected = [reference_tokens(reference, prompt, 16) for prompt in prompts]
    for block_size in (16, 32):
        runner = make_native_runner(tmp_path, block_size=block_size)
        for chunk in (WHOLE, 7):
            driver = Driver(runner=runner, block_size=block_size, chunk=chunk)
            assert driver.generate(prompts, num_tokens=16) == expected


@pytest.mark.parametrize("form", ["safetensors", "GGUF"])
def test_a_model_is_served_without_pytorch(form: str, tmp_path: Path) -> None:
    path = tmp_path
    reference = make_model(path, "llama3", head_dim=16, num_hidden_layers=2)
    if form == "GGUF":
        path = make_gguf(tmp_path / "x.gguf", reference, "llama", kind_of=lambda _: "F32")
    found = serve(path)
    assert found["loaded"] == []
    assert found["branches"] == [2, 2]
    assert found["logprobs"] == [4, 4]
    assert found["prompt_logprobs"] == [4, 2]
    assert found["beams"] == [2, 2]
    assert found["greedy"] == [reference_tokens(reference, prompt, 6) for prompt in PROMPTS]


def test_rows_that_sample_draw_what_torch_draws(native_tiny: Path) -> None:
    """Greedy, sampled, with logprobs, suppressed, and branches of one token, in one batch."""
    params = [
        SamplingParams(),
        SamplingParams(temperature=1.0, top_p=0.9, seed=3),
        SamplingParams(num_logprobs=2),
        SamplingParams(temperature=0.7, seed=4, num_logprobs=1),
        SamplingParams(),
    ]
    sequences = [
        make_sequence(prompt, range(4 * i, 4 * i + 4), params[i])
        for i, prompt in enumerate(make_prompts(9, 20, 17, 3, 30))
    ]
    batch = make_batch([(s, len(s.token_ids)) for s in sequences], block_size=16)
    torch_runner = make_native_runner(native_tiny, cpu_backend="torch")
    plain = torch_runner.execute(batch)
    best = {4: (int(plain.token_ids[4]), 1), 1: (int(plain.token_ids[1]),)}
    batch.rows.suppressed = make_runs(best, 5)
    expected = torch_runner.execute(batch)
    actual = make_native_runner(native_tiny).execute(batch)
    assert actual.token_ids.tolist() == expected.token_ids.tolist()
    assert actual.token_ids[4] != plain.token_ids[4]
    assert [entry.row for entry in actual.logprobs] == [2, 3]
    for ours, theirs in zip(actual.logprobs, expected.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=LOGITS)
        assert (ours.rank, ours.top_token_ids) == (theirs.rank, theirs.top_token_ids)


def test_blocks_are_as_large_as_torchs(native_tiny: Path) -> None:
    found = {
        make_native_runner(native_tiny, cpu_backend=backend).profile().block_bytes
        for backend in ("torch", "native")
    }
    assert len(found) == 1


def test_model_without_a_program_runs_through_torch_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = make_model(tmp_path, "llama3")  # heads of 8
    with caplog.at_level(logging.INFO):
        runner = make_runner(tmp_path)
    assert "head size 8 is no multiple of 16" in caplog.text
    assert_greedy(runner, reference, make_prompts(5, 20), 4)
    with pytest.raises(ValueError, match="cpu_backend is 'native', but head size 8"):
        make_native_runner(tmp_path)


def test_without_a_library_torch_serves_and_one_line_warns(
    native_tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable() -> None:
        raise NativeUnavailable("there is no C++ compiler; install g++ or clang++")

    monkeypatch.setattr(eligibility, "best_isa", unavailable)
    Driver(runner=make_runner(native_tiny)).generate(make_prompts(20), num_tokens=2)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len([line for line in warnings if "no C++ compiler" in line]) == 1


def test_pytorch_takes_the_type_of_activations_alone(native_tiny: Path) -> None:
    options = {"cpu_backend": "torch", "dtype": "float32"}
    runner = make_runner(native_tiny, kv_cache_dtype="float32", **options)
    assert runner.model.numerics.kernels.startswith("torch ")
    assert runner.model.numerics.factors == runner.model.numerics.kv_cache_dtype == "float32"
    with pytest.raises(ModelError, match=r"kv_cache_dtype is 'bfloat16'.*cpu_backend is 'torch'"):
        make_runner(native_tiny, kv_cache_dtype="bfloat16", **options)


def test_families_without_a_program_run_through_pytorch(tmp_path: Path) -> None:
    make_model(tmp_path, "gpt2")
    assert reason(tmp_path, device="cpu") == "no native program computes GPT2LMHeadModel"
    make_model(folder := tmp_path / "odd", "deepseek-v2", **(LATENTS | {"kv_lora_rank": 24}))
    told = reason(folder, device="cpu") or ""
    assert "DeepseekV2ForCausalLM as it is configured: " in told
    assert "kv_lora_rank" in told


def test_a_driver_makes_pytorch_find_the_device(
    native_tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(eligibility, "_DEVICE_FILES", (tmp_path / "nvidiactl",))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    assert reason(native_tiny) == "the device is cuda, and native programs run on CPUs"

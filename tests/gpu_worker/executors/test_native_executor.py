"""Whole steps through the native program: transformers' tokens, and what the sampler draws."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from contract.sampling_params import SamplingParams
from contract.sections.block_moves import BlockMapping
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig
from gpu_worker.executors import native_program
from gpu_worker.runner.model_runner import ModelRunner
from signalbox_kernels.native import NativeUnavailable
from tests.gpu_worker.generation import Driver, Generated, make_batch, make_runs, make_sequence
from tests.gpu_worker.tiny_models import VOCAB, make_model, reference_tokens
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
}


def make_runner(
    path: Path, *, dtype: str = "float32", backend: str = "native", block_size: int = 16
) -> ModelRunner:
    runner = ModelRunner(
        ModelConfig(model=str(path), dtype=dtype),
        CacheConfig(max_num_seqs=16, block_size=block_size),
        device_config=DeviceConfig(device="cpu", cpu_backend=backend),
    )
    runner.init_cache_engine(num_gpu_blocks=200, num_cpu_blocks=8)
    return runner


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_model(path, "llama3", head_dim=16)
    return path


def make_prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, VOCAB, length).tolist() for length in lengths]


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers(family: str, block_size: int, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family, **FAMILIES[family])
    prompts = make_prompts(1, 5, 16, 17, 33, 70, 200)
    expected = [reference_tokens(reference, prompt, 16) for prompt in prompts]
    runner = make_runner(tmp_path, block_size=block_size)
    for chunk in (1 << 30, 7):
        driver = Driver(runner=runner, block_size=block_size, chunk=chunk)
        assert driver.generate(prompts, num_tokens=16) == expected


def test_bfloat16_tokens_do_not_depend_on_batch_or_chunks(tiny: Path) -> None:
    prompts = make_prompts(1, 5, 16, 17, 33, 70, 200)
    runner = make_runner(tiny, dtype="bfloat16")
    together = Driver(runner=runner).generate(prompts, num_tokens=16)
    assert Driver(runner=runner, chunk=7).generate(prompts, num_tokens=16) == together
    alone = [Driver(runner=runner, chunk=5).generate([p], num_tokens=16)[0] for p in prompts]
    assert alone == together


def test_rows_that_sample_draw_what_torch_draws(tiny: Path) -> None:
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
    plain = make_runner(tiny, backend="torch").execute(batch)
    best = {4: (int(plain.token_ids[4]), 1), 1: (int(plain.token_ids[1]),)}
    batch.rows.suppressed = make_runs(best, 5)
    expected = make_runner(tiny, backend="torch").execute(batch)
    actual = make_runner(tiny).execute(batch)
    assert actual.token_ids.tolist() == expected.token_ids.tolist()
    assert actual.token_ids[4] != plain.token_ids[4]
    assert [entry.row for entry in actual.logprobs] == [2, 3]
    for ours, theirs in zip(actual.logprobs, expected.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=LOGITS)
        assert (ours.rank, ours.top_token_ids) == (theirs.rank, theirs.top_token_ids)


def test_branches_of_one_token_draw_from_its_logits(tiny: Path) -> None:
    drawn = []
    for backend in ("torch", "native"):
        (prompt,) = make_prompts(9)
        sequence = make_sequence(prompt, [5], SamplingParams(temperature=1.0, seed=11))
        batch = make_batch([(sequence, 9)], block_size=16)
        rows = make_batch([(sequence, 9)] * 3, block_size=16).rows
        rows.branch[:] = range(3)
        rows.token_index[:] = 8
        batch.rows = rows
        drawn.append(make_runner(tiny, backend=backend).execute(batch).token_ids.tolist())
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 1


def test_step_without_rows_draws_nothing(tiny: Path) -> None:
    runner = make_runner(tiny)
    (prompt,) = make_prompts(20)
    samples = runner.execute(make_batch([(make_sequence(prompt, [1, 2]), 12)], block_size=16))
    assert len(samples.token_ids) == 0
    assert samples.forward_ns > 0


def test_swapped_sequence_goes_on_as_if_nothing_had_happened(tiny: Path) -> None:
    runner = make_runner(tiny)
    (prompt,) = make_prompts(37)
    (expected,) = Driver(runner=runner).generate([prompt], num_tokens=12)
    runner.init_cache_engine(num_gpu_blocks=64, num_cpu_blocks=8)
    driver, sequence = Driver(runner=runner), make_sequence(prompt, [9, 4, 30, 31])
    while len(sequence.token_ids) < len(prompt) + 8:
        driver.step([sequence])
    old, away, back = (
        np.array(blocks, dtype=np.int32) for blocks in ([9, 4, 30], [7, 0, 2], [50, 51, 3])
    )
    runner.swap_out(BlockMapping(old, away))
    runner.cache.gpu_pool[torch.from_numpy(old).long()] = 77
    runner.swap_in(BlockMapping(away, back))
    sequence.blocks[:3] = back.tolist()
    while len(sequence.token_ids) < len(prompt) + 12:
        driver.step([sequence])
    assert sequence.token_ids[len(prompt) :] == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_poisoned_sequence_fails_alone_and_its_blocks_can_be_reused(dtype: str, tiny: Path) -> None:
    runner = make_runner(tiny, dtype=dtype)
    prompts = make_prompts(17, 17, 18)

    def sequences() -> list[Generated]:
        return [make_sequence(p, range(8 * i, 8 * i + 8)) for i, p in enumerate(prompts)]

    healthy = sequences()
    driver = Driver(runner=runner)
    for _ in range(12):
        driver.step(healthy)
    sick = sequences()
    driver.step(sick)
    runner.cache.gpu_pool[sick[1].blocks[0]] = 255  # NaN everywhere
    samples = driver.step(sick)
    assert samples.failed == {1: "logits are not finite"}
    runner.cache.gpu_pool[:] = 255
    heirs = sequences()
    for _ in range(12):
        assert not driver.step(heirs).failed
    assert [s.token_ids for s in heirs] == [s.token_ids for s in healthy]
    for survivor, twin in zip(sick[::2], healthy[::2], strict=True):
        assert survivor.token_ids == twin.token_ids[: len(survivor.token_ids)]


def test_blocks_are_as_large_as_torchs(tiny: Path) -> None:
    found = [make_runner(tiny, backend=b).profile().block_bytes for b in ("torch", "native")]
    assert found[0] == found[1]


def test_model_without_a_program_runs_through_torch_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = make_model(tmp_path, "llama3")  # heads of 8
    prompts = make_prompts(5, 20)
    with caplog.at_level(logging.INFO):
        runner = make_runner(tmp_path, backend="auto")
    assert "head size 8 is no multiple of 16" in caplog.text
    expected = [reference_tokens(reference, prompt, 4) for prompt in prompts]
    assert Driver(runner=runner).generate(prompts, num_tokens=4) == expected
    with pytest.raises(ValueError, match="cpu_backend is 'native', but head size 8"):
        make_runner(tmp_path)


def test_without_a_library_torch_serves_and_one_line_warns(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable() -> None:
        raise NativeUnavailable("there is no C++ compiler (g++ or clang++)")

    monkeypatch.setattr(native_program, "best_isa", unavailable)
    (prompt,) = make_prompts(20)
    Driver(runner=make_runner(tiny, backend="auto")).generate([prompt], num_tokens=2)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len([line for line in warnings if "no C++ compiler" in line]) == 1


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="cpu_backend is 'fast'; use one of auto, native, torch"):
        DeviceConfig(cpu_backend="fast")

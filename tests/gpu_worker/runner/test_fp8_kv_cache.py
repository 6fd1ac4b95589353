"""A tiny model with K and V in E4M3: tokens, logits, moves of blocks, scales, what is announced."""

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.attention import AttentionShape, register_attention_backend, registry
from gpu_worker.attention.torch_backend import TorchAttention
from gpu_worker.batch.batch import Batch
from gpu_worker.config import CacheConfig, ModelError
from gpu_worker.layers import AttentionPlan
from gpu_worker.loading import loaded_model
from gpu_worker.runner.model_runner import ModelRunner
from scheduler_svc.config import PreemptionMode, SchedulingSettings
from signalbox import LLM, SamplingParams
from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_kernels.torch.reference import to_cache
from tests.gpu_worker.builders import make_mapping, make_step
from tests.gpu_worker.generation import Driver, Generated, make_sequence
from tests.gpu_worker.model_runners import last_logits, make_prompts, make_runner
from tests.gpu_worker.tiny_models import make_llama
from tests.signalbox.llm.make import assert_at_rest

NUM_LAYERS, BLOCK_SIZE = 3, 16

# Of a value E4M3 keeps 4 bits: it moves by 2^-4 of itself at most. The bound is that of 16-bit K
# and V in tests/gpu_worker/native/test_kv_cache_dtype.py, whose derivation holds for any unit.
ROUNDED_LOGITS = 3 * 9 * 2.0**-4 * 48**0.5 * 0.16


def make_fp8_runner(path: Path, **options: Any) -> ModelRunner:
    fixed: dict[str, Any] = {"cpu_backend": "torch", "block_size": BLOCK_SIZE}
    runner: ModelRunner = make_runner(path, **fixed | {"kv_cache_dtype": "fp8"} | options)
    return runner


def read_file(file: Path) -> tuple[dict[str, Any], bytearray]:
    """Returns the header of a safetensors file, and the tensors' bytes."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])


def write_file(file: Path, header: dict[str, Any], data: bytearray) -> None:
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def with_scales(path: Path, folder: Path, scales: Mapping[str, Any]) -> Path:
    """Copies a checkpoint, and adds tensors of one float, or of several, to it."""
    shutil.copytree(path, folder, dirs_exist_ok=True)
    header, data = read_file(folder / "model.safetensors")
    for name, value in scales.items():
        values = np.asarray(value, np.float32)
        ends = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": ends}
        data += values.tobytes()
    write_file(folder / "model.safetensors", header, data)
    return folder


class RoundingAttention(TorchAttention):
    """Attention in float32 over K and V that E4M3 has rounded."""

    def plan(self, batch: Batch) -> AttentionPlan:  # type: ignore[override]
        plan = super().plan(batch)

        def rounding(query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
            codes = to_cache(key_value, torch.float8_e4m3fn, 1.0)
            return plan(query, codes.float(), layer=layer)

        return rounding


def test_tokens_are_those_of_rounded_keys_and_values(
    native_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_backends", registry._backends.copy())
    register_attention_backend("rounding", RoundingAttention)
    prompts = make_prompts(1, 5, 33, 70)
    options = {"kv_cache_dtype": "auto", "attention_backend": "rounding"}
    expected = Driver(runner=make_fp8_runner(native_tiny, **options), chunk=20)
    actual = Driver(runner=make_fp8_runner(native_tiny), chunk=20)
    assert actual.generate(prompts, num_tokens=8) == expected.generate(prompts, num_tokens=8)


def test_logits_are_near_those_of_exact_keys_and_values(native_tiny: Path) -> None:
    (prompt,) = make_prompts(40)
    exact, rounded = (
        last_logits(make_fp8_runner(native_tiny, kv_cache_dtype=dtype), prompt, chunks=(24, 16))
        for dtype in ("float32", "fp8")
    )
    assert 0 < (exact - rounded).abs().max() < ROUNDED_LOGITS


def test_blocks_take_a_quarter_and_four_times_as_many_fit(native_tiny: Path) -> None:
    options = {"kv_cache_memory": 2e-4, "swap_space": 1e-4}
    wide, narrow = (
        make_fp8_runner(native_tiny, kv_cache_dtype=dtype, **options).profile()
        for dtype in ("float32", "fp8")
    )
    assert wide.block_bytes == 4 * narrow.block_bytes
    assert 0 <= narrow.num_gpu_blocks - 4 * wide.num_gpu_blocks < 4
    assert 0 <= narrow.num_cpu_blocks - 4 * wide.num_cpu_blocks < 4


def decode(driver: Driver, sequence: Generated, num_tokens: int) -> list[int]:
    for _ in range(num_tokens):
        driver.step([sequence])
    return sequence.token_ids[sequence.num_prompt :]


def test_swapped_blocks_come_back_with_their_bits(native_tiny: Path) -> None:
    runner = make_fp8_runner(native_tiny)
    (prompt,) = make_prompts(40)
    expected = decode(Driver(runner=runner), make_sequence(prompt, [3, 4, 5]), 8)
    sequence, driver = make_sequence(prompt, [3, 4, 5]), Driver(runner=runner)
    driver.step([sequence])
    runner.apply(make_step(swap_out=make_mapping({3: 0, 4: 1, 5: 2})))
    runner.cache.gpu_pool[3:6] = 255  # NaN in E4M3
    runner.apply(make_step(swap_in=make_mapping({0: 9, 1: 7, 2: 8})))
    sequence.blocks = [9, 7, 8]
    assert decode(driver, sequence, 7) == expected


def test_a_cached_prefix_gives_the_tokens_of_its_prompt(native_tiny: Path) -> None:
    """Both compute the prefix in one chunk, and the rest in another."""
    runner = make_fp8_runner(native_tiny)
    prefix, rest = make_prompts(32, 8)
    driver = Driver(runner=runner, chunk=32)
    whole = make_sequence(prefix + rest, [3, 4, 5])
    expected = decode(driver, whole, 9)
    again = make_sequence(prefix + rest, [3, 4, 9], num_computed=32)
    assert decode(driver, again, 8) == expected


def test_a_fork_goes_on_in_a_copy_of_the_last_block(native_tiny: Path) -> None:
    runner = make_fp8_runner(native_tiny)
    (prompt,) = make_prompts(40)
    sequence, driver = make_sequence(prompt, [3, 4, 5]), Driver(runner=runner)
    driver.step([sequence])
    fork = make_sequence(sequence.token_ids, [3, 4, 6], num_computed=sequence.num_computed)
    fork.num_prompt = len(prompt)
    runner.apply(make_step(copy=make_mapping({5: 6})))
    expected = decode(driver, sequence, 7)
    runner.cache.gpu_pool[5] = 255
    assert decode(driver, fork, 7) == expected


def test_the_type_is_announced(native_tiny: Path) -> None:
    arithmetic = make_fp8_runner(native_tiny).model.arithmetic
    assert arithmetic is not None
    assert (arithmetic.factors, arithmetic.kv_cache_dtype) == ("float32", "fp8_e4m3")
    assert CacheConfig(kv_cache_dtype="fp8_e4m3").kv_cache_dtype == "fp8"


NAMES = {
    "llm-compressor": ("self_attn.k_scale", "self_attn.v_scale"),
    "ModelOpt": ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    "Quark": ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
    "vLLM": ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_scales_of_the_checkpoint_are_used(
    names: tuple[str, str], native_tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scales = {
        f"model.layers.{layer}.{name}": [[0.5 + layer, 2.0 + layer][side]]
        for layer in range(NUM_LAYERS)
        for side, name in enumerate(names)
    }
    ignored = {"model.layers.0.self_attn.q_scale": 3.0}
    runner = make_fp8_runner(with_scales(native_tiny, tmp_path, scales | ignored))
    shape: AttentionShape = runner._loaded.attention._shape  # type: ignore[attr-defined]
    assert shape.fp8_scales == ((0.5, 2.0), (1.5, 3.0), (2.5, 4.0))
    assert "scales of K and V" not in caplog.text


def test_one_scale_may_be_for_both_and_without_any_it_is_1(
    native_tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = with_scales(native_tiny, tmp_path, {"model.layers.1.self_attn.kv_scale": 0.25})
    runner = make_fp8_runner(path)
    shape: AttentionShape = runner._loaded.attention._shape  # type: ignore[attr-defined]
    assert shape.fp8_scales == ((1.0, 1.0), (0.25, 0.25), (1.0, 1.0))
    warned = [line for line in caplog.messages if "scales of K and V" in line]
    assert len(warned) == 1
    assert "the checkpoint has 2 of the 6 scales of K and V: the others are 1.0" in warned[0]


@pytest.mark.parametrize("cpu_backend", ["torch", "native"])
def test_scales_in_a_checkpoint_do_not_disturb_other_types(
    cpu_backend: str, native_tiny: Path, tmp_path: Path
) -> None:
    path = with_scales(native_tiny, tmp_path, {"model.layers.0.self_attn.k_proj.k_scale": 0.25})
    prompts = make_prompts(5, 20)
    tokens = [
        Driver(
            runner=make_fp8_runner(each, kv_cache_dtype="auto", cpu_backend=cpu_backend)
        ).generate(prompts, num_tokens=4)
        for each in (path, native_tiny)
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("scale", "problem"),
    [
        ([1.0, 2.0], r"k_scale has shape \(2,\), but K and V of a layer take one scale each"),
        (0.0, "k_scale is 0.0, not a positive number"),
        (float("nan"), "k_scale is nan, not a positive number"),
    ],
)
def test_scales_that_cannot_be_used_are_refused(
    scale: Any, problem: str, native_tiny: Path, tmp_path: Path
) -> None:
    path = with_scales(native_tiny, tmp_path, {"model.layers.2.self_attn.k_scale": scale})
    with pytest.raises(ModelError, match=problem + "; use kv_cache_dtype 'auto'"):
        make_fp8_runner(path)


def test_a_scale_keeps_large_keys_from_saturating(tmp_path: Path) -> None:
    make_llama(tmp_path)
    header, data = read_file(tmp_path / "model.safetensors")
    for layer in range(NUM_LAYERS):  # larger keys and smaller queries: the same scores
        for name, factor in (("k_proj", 2.0**11), ("q_proj", 2.0**-11)):
            start, end = header[f"model.layers.{layer}.self_attn.{name}.weight"]["data_offsets"]
            data[start:end] = (np.frombuffer(data[start:end], np.float32) * factor).tobytes()
    write_file(tmp_path / "model.safetensors", header, data)
    scales = {f"model.layers.{i}.self_attn.k_scale": 64.0 for i in range(NUM_LAYERS)}
    scaled_path = with_scales(tmp_path, tmp_path / "scaled", scales)
    (prompt,) = make_prompts(30)
    exact, cut, scaled = (
        last_logits(make_fp8_runner(path, kv_cache_dtype=dtype), prompt, chunks=(30,))
        for path, dtype in ((tmp_path, "auto"), (tmp_path, "fp8"), (scaled_path, "fp8"))
    )
    assert (exact - scaled).abs().max() < ROUNDED_LOGITS
    assert (exact - scaled).abs().mean() < (exact - cut).abs().mean()


def test_the_native_implementation_refuses_it_before_it_reads_weights(
    native_tiny: Path, tmp_path: Path
) -> None:
    shutil.copytree(native_tiny, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: 1 << 14])  # cut off within the tensors
    with pytest.raises(ModelError, match=r"kv_cache_dtype is 'fp8', but the native implementation"):
        make_runner(tmp_path, kv_cache_dtype="fp8", block_size=BLOCK_SIZE)


def test_a_gpu_without_instructions_for_it_is_refused_before_weights_are_read(
    native_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(loaded_model, "compute_capability", lambda device: (8, 6))
    monkeypatch.setattr(loaded_model, "load_weights", never)
    with pytest.raises(
        ModelError, match=r"fp8', which takes a GPU of compute capability 8.9 .*8.6"
    ):
        make_fp8_runner(native_tiny)


def generate(path: Path, *, num_blocks: int) -> tuple[list[list[int]], EngineCore]:
    """Generates from prompts with a common beginning, one after the other and then together."""
    scheduling = SchedulingSettings(
        preemption_mode=PreemptionMode.SWAP, num_gpu_blocks_override=num_blocks
    )
    prefix, *ends = make_prompts(40, 7, 12, 9, 3)
    prompts = [{"prompt_token_ids": prefix + end} for end in ends]
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=40)
    runner = partial(make_fp8_runner, path, swap_space=2e-3, kv_cache_memory=2e-3)
    with LLM._from_runner(runner, CoreConfig(scheduling=scheduling)) as llm:
        outputs = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in prompts]
        outputs += llm.generate(prompts, params, use_tqdm=False)
        core = llm.llm_engine._core
        assert_at_rest(llm.llm_engine)
    return [output.outputs[0].token_ids for output in outputs], core


def test_preempted_requests_and_prefix_hits_give_the_same_tokens(native_tiny: Path) -> None:
    undisturbed, ample = generate(native_tiny, num_blocks=200)
    assert ample.scheduler.preemption.num_preemptions == 0
    tokens, scarce = generate(native_tiny, num_blocks=14)
    assert scarce.scheduler.preemption.num_preemptions > 0
    assert tokens == undisturbed
    assert tokens[:4] == tokens[4:]  # the second time, with hits

"""A tiny model with K and V in 8 bits: tokens, logits, moves of blocks, scales, announcements."""

import json
import logging
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from signalbox import LLM, SamplingParams
from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_kernels.torch.kv_cache import to_cache, to_int8
from signalbox_scheduler.config import PreemptionMode, SchedulingSettings
from signalbox_worker.batch.batch import Batch
from signalbox_worker.config import CacheConfig, ModelError
from signalbox_worker.models.attention import AttentionShape, register_attention_backend, registry
from signalbox_worker.models.attention.torch_backend import TorchAttention
from signalbox_worker.models.layers import AttentionPlan
from signalbox_worker.runner.loading import attention_shape, loaded_model
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.builders import make_mapping, make_step
from tests.gpu_worker.generation import Driver, Generated, make_sequence
from tests.gpu_worker.model_runners import last_logits, make_prompts, make_runner
from tests.gpu_worker.tiny_models import make_llama
from tests.signalbox.llm.make import assert_at_rest

NUM_LAYERS, BLOCK_SIZE = 3, 16

# Of a value E4M3 keeps 4 bits: it moves by 2^-4 of itself at most. A whole number is off by 1/254
# of the head's largest, which is at most four times their usual size. The bound is that of 16-bit
# K and V in native/test_kv_cache_dtype.py, whose derivation holds for any unit.
ROUNDED_LOGITS = {
    kv_dtype: 3 * 9 * unit * 48**0.5 * 0.16
    for kv_dtype, unit in {"fp8": 2.0**-4, "int8": 2.0**-6}.items()
}
of_8_bits = pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
on_both_backends = pytest.mark.parametrize("cpu_backend", ["torch", "native"])


def make_torch_runner(path: Path, kv_dtype: str, **options: Any) -> LocalRunner:
    fixed: dict[str, Any] = {"cpu_backend": "torch", "block_size": BLOCK_SIZE}
    runner: LocalRunner = make_runner(path, **fixed | {"kv_cache_dtype": kv_dtype} | options)
    return runner


make_fp8_runner = partial(make_torch_runner, kv_dtype="fp8")


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


def decoded_fp8(key_value: Tensor) -> Tensor:
    return to_cache(key_value, torch.float8_e4m3fn, 1.0).float()


def decoded_int8(key_value: Tensor) -> Tensor:
    codes, scales = to_int8(key_value)
    return codes * scales[..., None]


class RoundingAttention(TorchAttention):
    """Attention in float32 over K and V that codes have rounded."""

    decoded = staticmethod(decoded_fp8)

    def plan(self, batch: Batch) -> AttentionPlan:  # type: ignore[override]
        plan = super().plan(batch)

        def rounding(query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
            return plan(query, self.decoded(key_value), layer=layer)

        return rounding


@pytest.mark.parametrize(("kv_dtype", "decoded"), [("fp8", decoded_fp8), ("int8", decoded_int8)])
def test_tokens_are_those_of_rounded_keys_and_values(
    kv_dtype: str, decoded: Any, native_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RoundingAttention, "decoded", staticmethod(decoded))
    monkeypatch.setattr(registry, "_backends", registry._backends.copy())
    register_attention_backend("rounding", RoundingAttention)
    prompts = make_prompts(1, 5, 33, 70)
    rounding = make_torch_runner(native_tiny, "auto", attention_backend="rounding")
    expected = Driver(runner=rounding, chunk=20)
    actual = Driver(runner=make_torch_runner(native_tiny, kv_dtype), chunk=20)
    assert actual.generate(prompts, num_tokens=8) == expected.generate(prompts, num_tokens=8)


@of_8_bits
def test_logits_are_near_those_of_exact_keys_and_values(kv_dtype: str, native_tiny: Path) -> None:
    (prompt,) = make_prompts(40)
    exact, rounded = (
        last_logits(make_torch_runner(native_tiny, dtype), prompt, chunks=(24, 16))
        for dtype in ("float32", kv_dtype)
    )
    assert 0 < (exact - rounded).abs().max() < ROUNDED_LOGITS[kv_dtype]


@on_both_backends
@pytest.mark.parametrize(("kv_dtype", "ratio"), [("fp8", 4.0), ("int8", 64 / 20)])
def test_blocks_take_a_byte_an_element_and_as_many_more_fit(
    cpu_backend: str, kv_dtype: str, ratio: float, native_tiny: Path
) -> None:
    """Whole numbers have a scale of 4 bytes beside the 16 of a head."""
    options = {"kv_cache_memory": 2e-4, "swap_space": 1e-4}
    wide, narrow = (
        make_torch_runner(native_tiny, dtype, cpu_backend=cpu_backend, **options).profile()
        for dtype in ("float32", kv_dtype)
    )
    assert wide.block_bytes == ratio * narrow.block_bytes
    assert -1 < narrow.num_gpu_blocks - ratio * wide.num_gpu_blocks < ratio
    assert -1 < narrow.num_cpu_blocks - ratio * wide.num_cpu_blocks < ratio


def decode(driver: Driver, sequence: Generated, num_tokens: int) -> list[int]:
    for _ in range(num_tokens):
        driver.step([sequence])
    return sequence.token_ids[sequence.num_prompt :]


@on_both_backends
@of_8_bits
def test_a_fork_goes_on_in_a_copy_of_the_last_block(
    cpu_backend: str, kv_dtype: str, native_tiny: Path
) -> None:
    runner = make_torch_runner(native_tiny, kv_dtype, cpu_backend=cpu_backend)
    (prompt,) = make_prompts(40)
    sequence, driver = make_sequence(prompt, [3, 4, 5]), Driver(runner=runner)
    driver.step([sequence])
    fork = make_sequence(sequence.token_ids, [3, 4, 6], num_computed=sequence.num_computed)
    fork.num_prompt = len(prompt)
    runner.apply(make_step(copy=make_mapping({5: 6})))
    expected = decode(driver, sequence, 7)
    runner.pools.gpu_pool[5] = 255
    assert decode(driver, fork, 7) == expected


@on_both_backends
@pytest.mark.parametrize(("kv_dtype", "announced"), [("fp8", "fp8_e4m3"), ("int8", "int8")])
def test_the_type_is_announced(
    cpu_backend: str, kv_dtype: str, announced: str, native_tiny: Path
) -> None:
    runner = make_torch_runner(native_tiny, kv_dtype, cpu_backend=cpu_backend)
    numerics = runner.model.numerics
    assert numerics is not None
    assert (numerics.factors, numerics.kv_cache_dtype) == ("float32", announced)


def test_the_types_have_the_names_of_vllm_too() -> None:
    assert CacheConfig(kv_cache_dtype="fp8_e4m3").kv_cache_dtype == "fp8"
    assert CacheConfig(kv_cache_dtype="int8_per_token_head").kv_cache_dtype == "int8"


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
    shape: AttentionShape = runner.executor.loaded.attention._shape  # type: ignore[attr-defined]
    assert shape.fp8_scales == ((0.5, 2.0), (1.5, 3.0), (2.5, 4.0))
    assert "scales of K and V" not in caplog.text


def test_one_scale_may_be_for_both_and_without_any_it_is_1(
    native_tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = with_scales(native_tiny, tmp_path, {"model.layers.1.self_attn.kv_scale": 0.25})
    runner = make_fp8_runner(path)
    shape: AttentionShape = runner.executor.loaded.attention._shape  # type: ignore[attr-defined]
    assert shape.fp8_scales == ((1.0, 1.0), (0.25, 0.25), (1.0, 1.0))
    warned = [line for line in caplog.messages if "scales of K and V" in line]
    assert len(warned) == 1
    assert "the checkpoint has 2 of the 6 scales of K and V: the others are 1.0" in warned[0]


@on_both_backends
def test_scales_of_a_checkpoint_give_the_tokens_of_codes_that_they_scale(
    cpu_backend: str, native_tiny: Path, tmp_path: Path
) -> None:
    """Codes of 1/8 of the values are the same but for the smallest, and the largest are not cut."""
    sides = ("k_scale", "v_scale")
    scales = {
        f"model.layers.{i}.self_attn.{side}": 8.0 for i in range(NUM_LAYERS) for side in sides
    }
    prompts = make_prompts(5, 40)
    tokens = [
        Driver(runner=make_torch_runner(path, "fp8", cpu_backend=cpu_backend)).generate(
            prompts, num_tokens=4
        )
        for path in (native_tiny, with_scales(native_tiny, tmp_path, scales))
    ]
    assert tokens[0] == tokens[1]


@on_both_backends
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_scales_in_a_checkpoint_do_not_disturb_other_types(
    cpu_backend: str, kv_dtype: str, native_tiny: Path, tmp_path: Path
) -> None:
    path = with_scales(native_tiny, tmp_path, {"model.layers.0.self_attn.k_proj.k_scale": 0.25})
    prompts = make_prompts(5, 20)
    tokens = [
        Driver(runner=make_torch_runner(each, kv_dtype, cpu_backend=cpu_backend)).generate(
            prompts, num_tokens=4
        )
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
@on_both_backends
def test_scales_that_cannot_be_used_are_refused(
    cpu_backend: str, scale: Any, problem: str, native_tiny: Path, tmp_path: Path
) -> None:
    path = with_scales(native_tiny, tmp_path, {"model.layers.2.self_attn.k_scale": scale})
    with pytest.raises(ModelError, match=problem + "; use kv_cache_dtype 'auto'"):
        make_fp8_runner(path, cpu_backend=cpu_backend)


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
        last_logits(make_torch_runner(path, dtype), prompt, chunks=(30,))
        for path, dtype in ((tmp_path, "auto"), (tmp_path, "fp8"), (scaled_path, "fp8"))
    )
    assert (exact - scaled).abs().max() < ROUNDED_LOGITS["fp8"]
    assert (exact - scaled).abs().mean() < (exact - cut).abs().mean()


def test_a_gpu_without_instructions_for_it_is_refused_before_weights_are_read(
    native_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(attention_shape, "compute_capability", lambda device: (8, 6))
    monkeypatch.setattr(loaded_model, "load_weights", never)
    with pytest.raises(
        ModelError, match=r"fp8', which takes a GPU of compute capability 8.9 .*8.6"
    ):
        make_fp8_runner(native_tiny)


def generate(path: Path, *, num_blocks: int, **options: Any) -> tuple[list[list[int]], EngineCore]:
    """Generates from prompts with a common beginning, one after the other and then together."""
    scheduling = SchedulingSettings(
        preemption_mode=PreemptionMode.SWAP, num_gpu_blocks_override=num_blocks
    )
    prefix, *ends = make_prompts(40, 7, 12, 9, 3)
    prompts = [{"prompt_token_ids": prefix + end} for end in ends]
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=40)
    runner = partial(make_torch_runner, path, swap_space=2e-3, kv_cache_memory=2e-3, **options)
    with LLM._from_runner(runner, CoreConfig(scheduling=scheduling)) as llm:
        outputs = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in prompts]
        outputs += llm.generate(prompts, params, use_tqdm=False)
        core = llm.llm_engine._core
        assert_at_rest(llm.llm_engine)
    return [output.outputs[0].token_ids for output in outputs], core


@on_both_backends
@of_8_bits
def test_preempted_requests_and_prefix_hits_give_the_same_tokens(
    cpu_backend: str, kv_dtype: str, native_tiny: Path
) -> None:
    options = {"cpu_backend": cpu_backend, "kv_dtype": kv_dtype}
    undisturbed, ample = generate(native_tiny, num_blocks=200, **options)
    assert ample.scheduler.preemption.num_preemptions == 0
    tokens, scarce = generate(native_tiny, num_blocks=14, **options)
    assert scarce.scheduler.preemption.num_preemptions > 0
    assert tokens == undisturbed
    assert tokens[:4] == tokens[4:]  # the second time, with hits


FP8_SCHEME = {"type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": False}


def with_scheme(
    path: Path,
    folder: Path,
    scheme: object,
    *,
    method: str = "fp8",
    key: str = "quantization_config",
) -> Path:
    """Copies a checkpoint of floats whose K and V are meant in codes of `scheme`."""
    with_scales(path, folder, {"model.layers.0.self_attn.k_scale": 0.5})
    config = json.loads((folder / "config.json").read_text())
    config[key] = {"quant_method": method, "config_groups": {}, "kv_cache_scheme": scheme}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("differing", "named"),
    [
        ({"type": "int"}, "type 'int'"),
        ({"type": None}, "type 'int'"),
        ({"num_bits": 4}, "num_bits 4"),
        ({"strategy": "attn_head"}, "strategy 'attn_head'"),
        ({"symmetric": False}, "symmetric False"),
        ({"dynamic": True}, "dynamic True"),
        ({"dynamic": "local", "type": "int"}, "type 'int', dynamic 'local'"),
    ],
)
@on_both_backends
def test_scales_of_other_codes_are_refused(
    cpu_backend: str, differing: dict[str, object], named: str, native_tiny: Path, tmp_path: Path
) -> None:
    path = with_scheme(native_tiny, tmp_path, FP8_SCHEME | differing)
    with pytest.raises(ModelError, match=f"kv_cache_scheme has {named}; use 'int8'"):
        make_fp8_runner(path, cpu_backend=cpu_backend)


@on_both_backends
@pytest.mark.parametrize("scheme", [FP8_SCHEME, "static", None])
def test_static_scales_of_8_bit_floats_are_read(
    cpu_backend: str, scheme: object, native_tiny: Path, tmp_path: Path, caplog: Any
) -> None:
    make_fp8_runner(with_scheme(native_tiny, tmp_path, scheme), cpu_backend=cpu_backend)
    assert "the checkpoint has 1 of the 6 scales of K and V" in caplog.text


@on_both_backends
@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_weights_beside_scales_alone_are_floats(
    cpu_backend: str, key: str, native_tiny: Path, tmp_path: Path, caplog: Any
) -> None:
    path = with_scheme(native_tiny, tmp_path, FP8_SCHEME, method="compressed-tensors", key=key)
    make_fp8_runner(path, cpu_backend=cpu_backend)
    assert "the checkpoint has 1 of the 6 scales of K and V" in caplog.text
    prompts = make_prompts(7)
    plain, ours = (
        Driver(runner=make_runner(folder, cpu_backend=cpu_backend)).generate(prompts, num_tokens=8)
        for folder in (native_tiny, path)
    )
    assert ours == plain


@on_both_backends
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize(
    ("scheme", "line"),
    [
        (FP8_SCHEME | {"type": "int"}, "ignores kv_cache_scheme: type 'int'"),
        (FP8_SCHEME, "static scales by tensor; 'fp8' uses them"),
    ],
)
def test_a_line_says_that_a_scheme_is_ignored(
    *,
    cpu_backend: str,
    kv_dtype: str,
    scheme: object,
    line: str,
    native_tiny: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        make_torch_runner(
            with_scheme(native_tiny, tmp_path, scheme), kv_dtype, cpu_backend=cpu_backend
        )
    assert [message for message in caplog.messages if message.endswith(line)]

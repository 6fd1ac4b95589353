"""Codes of floats (FP8, NF4, FP4, MXFP4, NVFP4, int8 under scales of 32 bits) run natively as they
are stored: with the bits of the decoded weights, in their own size, also divided and under
adapters.

Adapters over FP8, whose activations are rounded, are in tests/gpu_worker/runner/ranks."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from signalbox import LLM, SamplingParams
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.lora.request import LoRARequest
from signalbox_kernels.arena import Arena
from signalbox_kernels.floats import FLOAT8_E4M3, AnyArray, to_float32
from signalbox_kernels.storage import FLOATS_OF_4_BITS, Storage
from signalbox_worker.config import ModelConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.files.checkpoints.coded_matrices import stored_codes
from signalbox_worker.files.checkpoints.quantised_matrices import with_matrices
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.quantised.configuration import quantised_checkpoint
from signalbox_worker.runner.loading.model_source import open_model, weight_sizes
from signalbox_worker.runner.native.weights import Weights
from tests.gpu_worker.files.adapters.peft_adapters import KINDS, make_adapters, peft_tokens
from tests.gpu_worker.files.checkpoints.test_quantization import make_runner as make_probed
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import assert_greedy, log_probabilities, make_prompts
from tests.gpu_worker.quantised_models import Encode, by_block, by_matrix, by_row, save_quantised
from tests.gpu_worker.rounded_products import assert_rounds_as, reference_log_probabilities
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.kernels.native.matrices import parts_of, values_of
from tests.native_kernels import skip_without_native_kernels
from tests.signalbox.llm.make import assert_at_rest, tokens_of

skip_without_native_kernels()

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
MXFP4_WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
MXFP4 = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "config_groups": {"0": {"targets": ["Linear"], "weights": MXFP4_WEIGHTS}},
    "ignore": ["lm_head"],
}


NVFP4 = MXFP4 | {
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "0": {
            "targets": ["Linear"],
            "weights": MXFP4_WEIGHTS | {"strategy": "tensor_group", "group_size": 16},
        }
    },
}


def in_mxfp4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    values = torch.from_numpy(FLOATS_OF_4_BITS[Storage.MXFP4])
    groups = weight.float().reshape(len(weight), -1, 32)
    exponents = (groups.abs().amax(dim=-1) / 6).log2().ceil()
    scales = torch.exp2(exponents)[..., None]
    codes = ((groups / scales)[..., None] - values).abs().argmin(dim=-1)
    decoded = (values[codes] * scales).reshape(weight.shape)
    pairs = codes.reshape(len(weight), -1, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
    scale_bytes = (exponents + 127).to(torch.uint8)
    return {"weight_packed": packed, "weight_scale": scale_bytes}, decoded


def in_nvfp4(weight: Tensor, *, of_modelopt: bool = False) -> tuple[dict[str, Tensor], Tensor]:
    values = torch.from_numpy(FLOATS_OF_4_BITS[Storage.MXFP4])
    groups = weight.float().reshape(len(weight), -1, 16)
    factor = groups.abs().max() / (6 * 448)
    stored = factor if of_modelopt else 1 / factor
    factor = stored if of_modelopt else 1 / stored
    scales = (groups.abs().amax(dim=-1) / (6 * factor)).to(torch.float8_e4m3fn)
    of_groups = (scales.float() * factor)[..., None]
    codes = ((groups / of_groups)[..., None] - values).abs().argmin(dim=-1)
    pairs = codes.reshape(len(weight), -1, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
    names = (
        ("weight", "weight_scale_2") if of_modelopt else ("weight_packed", "weight_global_scale")
    )
    tensors = dict(zip(names, (packed, stored.reshape(1)), strict=True))
    decoded = (values[codes] * of_groups).reshape(weight.shape)
    return tensors | {"weight_scale": scales}, decoded


MIXED = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        f"model.layers.{layer}.{part}": {"quant_algo": algorithm, "group_size": size}
        for layer in range(3)
        for part, algorithm, size in (
            ("self_attn.q_proj", "W4A16_NVFP4", 16),
            ("self_attn.k_proj", "FP8_PER_CHANNEL_PER_TOKEN", 0),
            ("self_attn.v_proj", "W4A16_NVFP4", 16),
            ("self_attn.o_proj", "W4A16_NVFP4", 16),
            ("mlp", "fp8_pb_wo", 128),
        )
    },
}


def in_mixed(weight: Tensor, name: str) -> tuple[dict[str, Tensor], Tensor]:
    """Scales of blocks have four axes, as ModelOpt writes them."""
    if "mlp" in name:
        tensors, decoded = by_block(weight)
        return tensors | {
            "weight_scale": tensors.pop("weight_scale_inv")[:, None, :, None]
        }, decoded
    return by_row(weight) if "k_proj" in name else in_nvfp4(weight, of_modelopt=True)


def in_nf4(
    weight: Tensor, block_size: int = 64, scale: float = 1.0
) -> tuple[dict[str, Tensor], Tensor]:
    values = torch.from_numpy(FLOATS_OF_4_BITS[Storage.NF4]) * scale
    blocks = weight.float().reshape(-1, block_size)
    largest = blocks.abs().amax(dim=1) / scale
    codes = ((blocks / largest[:, None])[..., None] - values).abs().argmin(dim=-1)
    decoded = (values[codes] * largest[:, None]).reshape(weight.shape)
    pairs = codes.reshape(-1, 2)
    packed = (pairs[:, :1] << 4 | pairs[:, 1:]).to(torch.uint8)
    shape = list(weight.shape)
    state = f'{{"blocksize": {block_size}, "dtype": "float32", "shape": {shape}}}'.encode()
    tensors = {"weight": packed, "weight.absmax": largest, "weight.quant_map": values}
    kind = {"weight.quant_state.bitsandbytes__nf4": torch.tensor(list(state), dtype=torch.uint8)}
    return tensors | kind, decoded


def in_int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    largest = weight.float().abs().amax(dim=1)
    codes = (weight.float() / largest[:, None] * 127).round().to(torch.int8)
    return {"weight": codes, "SCB": largest}, codes.float() * (largest / 127)[:, None]


FORMS: dict[str, tuple[Encode, dict[str, Any], Storage, float]] = {
    "fp8 of matrices": (by_matrix, FP8, Storage.E4M3, 1.04),
    "fp8 of rows": (by_row, FP8, Storage.E4M3, 1.04),
    "rows of fbgemm": (by_row, {"quant_method": "fbgemm_fp8"}, Storage.E4M3, 1.04),
    "fp8 of blocks": (by_block, FP8 | {"weight_block_size": [128, 128]}, Storage.E4M3, 1.04),
    "nf4": (in_nf4, NF4, Storage.NF4, 1.01),
    "nf4 in blocks of 256": (partial(in_nf4, block_size=256), NF4, Storage.NF4, 1.11),
    "int8": (in_int8, INT8, Storage.INT8, 1.04),
    "mxfp4": (in_mxfp4, MXFP4, Storage.MXFP4, 1.01),
    "nvfp4": (in_nvfp4, NVFP4, Storage.NVFP4, 1.03),
    "nvfp4 of ModelOpt": (
        partial(in_nvfp4, of_modelopt=True),
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        Storage.NVFP4,
        1.03,
    ),
}
"""How a matrix is encoded, the configuration, the type that holds it, and the most bytes that it
takes for each one of the file."""
PROMPTS = make_prompts(30, 31)


def save(path: Path, form: str, family: str = "llama2", **options: Any) -> Any:
    encode, described, _, _ = FORMS[form]
    return save_quantised(path, family, encode, described, **options)


def log_of(path: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> tuple[Any, str]:
    caplog.clear()
    with caplog.at_level("DEBUG"):
        runner = make_probed(path, **options)
    return runner, caplog.text


@pytest.mark.parametrize("form", FORMS)
def test_codes_are_multiplied_as_they_are(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = save(tmp_path, form, "qwen2")
    runner, log = log_of(tmp_path, caplog, dtype="float32")
    assert re.search(rf"matrices: \d+ of {FORMS[form][2].name}, \d of F32; ", log)
    if form.startswith("fp8"):
        assert_rounds_as(runner, reference_log_probabilities(reference))
    else:
        assert_greedy(runner, reference, PROMPTS)
    found = log_probabilities(runner)

    def decoded(self: Weights, name: str, tensor: StoredTensor) -> AnyArray:
        return to_float32(tensor.read()[: self._shapes[name][0]])

    monkeypatch.setattr(Weights, "_unrounded", decoded)
    expected = log_probabilities(make_probed(tmp_path, dtype="float32"))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("form", FORMS)
def test_packed_matrices_take_the_bytes_of_the_file(form: str, tmp_path: Path) -> None:
    save(tmp_path, form, hidden_size=256)
    config = ModelConfig(model=str(tmp_path))
    sizes = weight_sizes(config)
    assert sizes is not None and sizes.keeps_codes
    assert sizes.bytes_in(sizes.quantised_form) == sizes.stored_bytes
    arena, num_stored = Arena(), 0
    for tensor in open_model(config, lambda _: None).stored().values():
        if tensor.form is not None:
            matrix = stored_codes(tensor)
            assert matrix is not None and matrix.type is FORMS[form][2]
            assert parts_of(matrix) == matrix.blocks.tobytes()
            arena.pack(matrix)
            large = (part.read() for part in tensor.parts.values() if part.shape != (16,))
            num_stored += sum(values.nbytes for values in large)
    assert 0 < arena.num_bytes <= FORMS[form][3] * num_stored


def test_each_matrix_of_modelopt_has_the_form_of_its_module(tmp_path: Path) -> None:
    """K rounds its inputs, and nothing else does."""
    reference = save_quantised(tmp_path, "llama2", in_mixed, MIXED)
    stored = open_model(ModelConfig(model=str(tmp_path)), lambda _: None).stored()
    kinds = {
        name.split(".", 3)[3]: matrix.type
        for name, tensor in stored.items()
        if tensor.form is not None and (matrix := stored_codes(tensor))
    }
    is_fp8 = {name for name, kind in kinds.items() if kind is Storage.E4M3}
    assert is_fp8 == {name for name in kinds if "mlp" in name or "k_proj" in name}
    assert len(kinds) == 7 and set(kinds.values()) == {Storage.E4M3, Storage.NVFP4}
    assert_rounds_as(make_probed(tmp_path, dtype="float32"), reference_log_probabilities(reference))


def test_tokens_depend_on_the_request_alone(tmp_path: Path) -> None:
    save(tmp_path, "fp8 of blocks")
    runner = make_probed(tmp_path, dtype="bfloat16")
    together = Driver(runner=runner).generate(PROMPTS, num_tokens=6)
    alone = [Driver(runner=runner, chunk=7).generate([p], num_tokens=6)[0] for p in PROMPTS]
    assert alone == together


def matrix_of(tensors: dict[str, AnyArray], described: dict[str, Any]) -> StoredTensor:
    """Returns the matrix that the tensors of a module stand for."""
    checkpoint = quantised_checkpoint({"quantization_config": described})
    parts = {
        f"m.{end}": StoredTensor(array.shape, partial(np.asarray, array), dtype=array.dtype)
        for end, array in tensors.items()
    }
    return with_matrices(parts, checkpoint)["m.weight"]


def fp8(codes: AnyArray, *scales: float) -> StoredTensor:
    of_rows = np.array(scales, dtype=np.float32)[:, None]
    return matrix_of({"weight": codes.view(FLOAT8_E4M3), "weight_scale": of_rows}, FP8)


def test_every_code_of_e4m3_keeps_its_value() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    codes[:, 127] = 0
    tensor = fp8(codes, 1 / 3, 255.0)
    matrix = stored_codes(tensor)
    assert matrix is not None
    assert values_of(matrix).tobytes() == to_float32(tensor.read()).tobytes()


def test_a_code_of_nan_makes_products_of_its_row_nan() -> None:
    codes = np.ones((3, 256), dtype=np.uint8)
    codes[1, 130], codes[2, 5] = 0x7F, 0xFF
    matrix = stored_codes(fp8(codes, 1.0, 1.0, 1.0))
    assert matrix is not None
    is_nan = np.isnan(values_of(matrix))
    assert is_nan.any(axis=1).tolist() == [False, True, True]
    assert not is_nan[1, :128].any() and not is_nan[2, 128:].any()


def test_scales_that_are_too_large_are_decoded() -> None:
    codes = np.ones((2, 128), dtype=np.uint8)
    assert stored_codes(fp8(codes, 1.0, 256.0)) is None
    assert stored_codes(fp8(codes, 1.0, float("inf"))) is None
    assert stored_codes(fp8(codes, 1.0, -255.0)) is not None


def test_scales_of_nvfp4_that_are_nan_or_under_a_large_factor() -> None:
    encoded, _ = in_nvfp4(torch.ones(3, 32), of_modelopt=True)
    tensors: dict[str, AnyArray] = {
        end: part.view(torch.uint8).numpy().view(FLOAT8_E4M3)
        if end == "weight_scale"
        else part.numpy()
        for end, part in encoded.items()
    }
    described = FORMS["nvfp4 of ModelOpt"][1]
    tensors["weight_scale"].view(np.uint8)[1, 1] = 0x7F
    matrix = stored_codes(matrix_of(tensors, described))
    assert matrix is not None
    assert np.isnan(values_of(matrix)).all(axis=1).tolist() == [False, True, False]
    for factor, is_kept in ((255.9, True), (256.0, False)):
        tensors["weight_scale_2"] = np.array(factor, dtype=np.float32)
        assert (stored_codes(matrix_of(tensors, described)) is not None) == is_kept


def test_zero_points_are_decoded_unless_all_are_zero() -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}
    described = MXFP4 | {
        "format": "int-quantized",
        "config_groups": {"0": {"targets": ["Linear"], "weights": weights}},
    }
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128).view(np.int8)
    scales = np.array([[1 / 3], [1 / 7]], dtype=np.float32)  # of more than 16 bits
    for zeros, kind in (([0, 0], Storage.INT8), ([0, 1], None)):
        points = np.array(zeros, dtype=np.int8)[:, None]
        tensors: dict[str, AnyArray] = {"weight": codes, "weight_scale": scales}
        tensor = matrix_of(tensors | {"weight_zero_point": points}, described)
        matrix = stored_codes(tensor)
        assert (matrix and matrix.type) is kind
        if matrix is not None:
            assert values_of(matrix).tobytes() == to_float32(tensor.read()).tobytes()


@pytest.mark.parametrize(
    ("shape", "options"),
    [((4, 96), {}), ((4, 64), {"block_size": 32}), ((4, 64), {"scale": 0.5})],
    ids=["blocks across rows", "smaller blocks", "another table"],
)
def test_other_codes_of_bitsandbytes_are_decoded(
    shape: tuple[int, int], options: dict[str, Any]
) -> None:
    encoded, decoded = in_nf4(torch.randn(shape), **options)
    tensor = matrix_of({end: part.numpy() for end, part in encoded.items()}, NF4)
    assert stored_codes(tensor) is None
    np.testing.assert_allclose(tensor.read(), decoded.numpy(), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["nf4", "mxfp4"])
def test_adapters_on_divided_models_give_the_tokens_of_peft(form: str, tmp_path: Path) -> None:
    model = save(tmp_path, form, "llama2", hidden_size=256)
    given = [one.split("=") for one in make_adapters(model, tmp_path / "adapters", KINDS[:3])]
    requests = [
        LoRARequest(name, number, path) for number, (name, path) in enumerate(given, start=1)
    ]
    ids = make_prompts(17, 5, 30)
    expected = [
        peft_tokens(model, Path(request.path), [prompt], 8)[0]
        for request, prompt in zip(requests, ids, strict=True)
    ]
    prompts: Any = [{"prompt_token_ids": prompt} for prompt in ids]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    start = make_start(
        tmp_path,
        ParallelConfig(),
        cpu_backend="native",
        max_lora_rank=16,
        max_cpu_loras=8,
        dtype="float32",
    )
    for tp, pp in ((1, 1), (1, 2), (2, 1)):
        make = partial(load_threads, with_sizes(start, tp, pp))
        with LLM._from_runner(make, CoreConfig(enable_lora=True)) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=requests)
            assert tokens_of(outputs) == expected, f"{tp} x {pp}"
            assert_at_rest(llm.llm_engine)

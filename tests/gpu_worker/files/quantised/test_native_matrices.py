"""Checkpoints of whole numbers in groups run natively as they are stored: in float32 with the bits
of the decoded weights, in their own size, with columns in any order."""

import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from signalbox_kernels.arena import Arena
from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.checkpoints.coded_matrices import stored_codes
from signalbox_worker.runner.loading.model_source import open_model, weight_sizes
from signalbox_worker.runner.native.weights import Weights
from tests.gpu_worker.files.checkpoints.test_quantization import difference
from tests.gpu_worker.files.checkpoints.test_quantization import make_runner as make_probed
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import (
    assert_greedy,
    log_probabilities,
    make_prompts,
    make_runner,
)
from tests.gpu_worker.quantised_models import Encode, by_groups, in_awq, in_gptq, save_quantised
from tests.kernels.native.matrices import parts_of
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
BY_ORDER = GPTQ | {"group_size": 64, "checkpoint_format": "gptq_v2", "desc_act": True, "sym": False}
FORMS: dict[str, tuple[Encode, dict[str, Any], str]] = {
    "awq": (partial(in_awq, group_size=64), AWQ, "INT4_G64"),
    "awq, of 32": (partial(in_awq, group_size=32), AWQ | {"group_size": 32}, "INT4_G32"),
    "gptq": (partial(in_gptq, group_size=128, is_symmetric=True), GPTQ, "INT4_G128"),
    "gptq of rows": (
        partial(in_gptq, group_size=512),
        GPTQ | {"group_size": -1, "sym": False},
        "INT4_G128",
    ),
    "gptq, in another order": (
        partial(in_gptq, group_size=64, is_second=True, is_reordered=True),
        BY_ORDER,
        "INT4_G64",
    ),
}
PROMPTS = make_prompts(30, 31)


def save(path: Path, form: str, family: str = "llama2", **options: Any) -> Any:
    encode, described, _ = FORMS[form]
    return save_quantised(path, family, encode, described, **options)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["llama2", "qwen2"])
def test_codes_are_multiplied_as_they_are(
    form: str, family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = save(tmp_path, form, family)
    with caplog.at_level(logging.DEBUG):
        runner = make_runner(tmp_path, dtype="float32")
    name = FORMS[form][1]["quant_method"]
    assert f"weights: {name} of the checkpoint, " in caplog.text
    assert re.search(rf"matrices: \d+ of {FORMS[form][2]}, \d of F32; ", caplog.text)
    assert_greedy(runner, reference, PROMPTS)


@pytest.mark.parametrize("form", [form for form in FORMS if "order" not in form])
def test_float32_has_the_bits_of_decoded_weights(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, form)
    stored = log_probabilities(make_probed(tmp_path, dtype="float32"))

    def decoded(self: Weights, name: str) -> AnyArray:
        return to_float32(self._take(name).read()[: self._shapes[name][0]])

    monkeypatch.setattr(Weights, "matrix", decoded)
    expected = log_probabilities(make_probed(tmp_path, dtype="float32"))
    assert torch.equal(stored, expected)


@pytest.mark.parametrize("form", FORMS)
def test_activations_in_8_bits_are_close(form: str, tmp_path: Path) -> None:
    save(tmp_path, form)
    exact = make_probed(tmp_path, dtype="float32")
    runner = make_probed(tmp_path, dtype="bfloat16")
    assert (exact.executor.program.arithmetic, runner.executor.program.arithmetic) == (
        "float32",
        "8 bits",
    )
    assert 0 < difference(exact, runner) < 0.05


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["awq", "gptq, in another order"])
def test_tokens_depend_on_the_request_alone(form: str, dtype: str, tmp_path: Path) -> None:
    save(tmp_path, form)
    runner = make_probed(tmp_path, dtype=dtype)
    together = Driver(runner=runner).generate(PROMPTS, num_tokens=6)
    alone = [Driver(runner=runner, chunk=7).generate([p], num_tokens=6)[0] for p in PROMPTS]
    assert alone == together


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
            assert matrix is not None and parts_of(matrix) == matrix.blocks.tobytes()
            arena.pack(matrix)
            num_stored += sum(part.read().nbytes for part in tensor.parts.values())
    assert 0 < arena.num_bytes <= 1.05 * num_stored


def test_parts_of_different_orders_are_products_of_their_own(tmp_path: Path) -> None:
    """Q is ordered unlike K and V."""

    def encode(weight: torch.Tensor) -> Any:
        return in_gptq(weight, 64, is_second=True, is_reordered=weight.shape[0] == 256)

    reference = save_quantised(tmp_path, "llama2", encode, BY_ORDER)
    assert_greedy(make_runner(tmp_path, dtype="float32"), reference, PROMPTS)


def test_groups_that_are_not_of_one_size_are_decoded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An index may name any group for any column."""

    def encode(weight: torch.Tensor) -> Any:
        tensors, decoded = in_gptq(weight, 64, is_second=True)
        if weight.shape[1] != 512:
            return tensors, decoded
        codes, zeros, scales, _ = by_groups(weight, 64)
        index = torch.arange(512) // 64
        index[5] = 7  # so that one group has a column less, and another one more
        values = (codes - zeros.T[:, index]).float() * scales.T.float()[:, index]
        return tensors | {"g_idx": index.to(torch.int32)}, values

    reference = save_quantised(tmp_path, "llama2", encode, BY_ORDER)
    with caplog.at_level(logging.DEBUG):
        runner = make_runner(tmp_path, dtype="float32")
    assert re.search(r"\d of INT4_G64, \d of F32; ", caplog.text)
    assert_greedy(runner, reference, PROMPTS)


def test_scales_that_16_bits_do_not_hold_are_decoded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def encode(weight: torch.Tensor) -> Any:
        tensors, _ = in_awq(weight, 64)
        kind = torch.float32 if weight.shape[1] == 512 else torch.bfloat16
        scales = tensors["scales"].to(kind) * (1 / 3)
        codes, zeros, _, _ = by_groups(weight, 64)
        index = torch.arange(weight.shape[1]) // 64
        values = (codes - zeros.T[:, index]).float() * scales.T.float()[:, index]
        return tensors | {"scales": scales}, values

    reference = save_quantised(tmp_path, "llama2", encode, AWQ)
    with caplog.at_level(logging.DEBUG):
        runner = make_runner(tmp_path, dtype="float32")
    assert re.search(r"\d of INT4_G64_BF16, \d of F32; ", caplog.text)
    assert_greedy(runner, reference, PROMPTS)


def test_a_head_in_4_bits_is_a_product_too(tmp_path: Path) -> None:
    described = GPTQ | {"group_size": 64, "lm_head": True}
    encode = partial(in_gptq, group_size=64)
    reference = save_quantised(
        tmp_path, "llama2", encode, described, extra="lm_head", vocab_size=104
    )
    assert_greedy(make_runner(tmp_path, dtype="float32"), reference, make_prompts(20))


def test_none_decodes_and_another_name_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, "awq")
    with caplog.at_level(logging.DEBUG):
        make_runner(tmp_path, quantization="none")
    assert "weights: awq of the checkpoint, decoded to float32, " in caplog.text
    assert "INT4" not in caplog.text
    for name in ("awq", "awq_marlin"):
        make_runner(tmp_path, quantization=name)
    with pytest.raises(ModelError, match="'gptq', but the checkpoint is in awq; use 'auto'"):
        make_runner(tmp_path, quantization="gptq")

"""Checkpoints that libraries wrote are read as other libraries read them.

`make_checkpoints.py` made the folders of checkpoints/ and says which library did what.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from signalbox_kernels.floats import to_float32
from signalbox_worker.config import ModelError
from signalbox_worker.runner.loading.hf_directory import DirectorySource
from tests.gpu_worker.files.checkpoints.test_quantization import make_runner
from tests.gpu_worker.model_runners import log_probabilities
from tests.gpu_worker.tiny_models import make_tokenizer
from tests.native_kernels import skip_without_native_kernels
from tests.rounding import LOGITS, UNIT_ROUNDOFF

CHECKPOINTS = Path(__file__).with_name("checkpoints")
NAMES = sorted(folder.name for folder in CHECKPOINTS.iterdir())
PROMPT = [3, 17, 41, 8, 22, 30, 5, 12, 46, 1, 9, 33]
INTEGERS = ("awq", "gptq", "ct_w4a16", "ct_w8a", "ct_mixed", "ct_nvfp4")
"""How the names begin of checkpoints whose codes native programs multiply as whole numbers."""
TYPES = {
    "ct_fp8": "E4M3",
    "fp8": "E4M3",
    "ct_mxfp4": "MXFP4",
    "ct_nvfp4": "NVFP4",
    "bnb_nf4": "NF4",
    "bnb_fp4": "FP4",
    "bnb_int8": "INT8",
}
"""Types that native programs hold others in, by how the names begin."""
ROUNDED = ("ct_fp8", "ct_w8a8")
"""How the names begin of checkpoints that prescribe activations in 8 bits, and can do without;
test_rounded_activations.py has them as they are."""


def expected(name: str) -> Any:
    return json.loads((CHECKPOINTS / name / "expected.json").read_text())


def serve(name: str, folder: Path, **options: Any) -> Any:
    shutil.copytree(CHECKPOINTS / name, folder, dirs_exist_ok=True)
    make_tokenizer(folder)
    if name.startswith(ROUNDED):
        config = json.loads((folder / "config.json").read_text())
        for group in config["quantization_config"]["config_groups"].values():
            group["input_activations"] = None
        (folder / "config.json").write_text(json.dumps(config))
    return make_runner(folder, **options)


@pytest.mark.parametrize("name", NAMES)
def test_matrices_are_those_of_the_library(name: str) -> None:
    """By a sum with a weight for each place, which tells any two places apart."""
    checksums = expected(name)["matrices"]
    stored = DirectorySource(CHECKPOINTS / name, name=name).stored()
    matrices = {key: tensor for key, tensor in stored.items() if len(tensor.shape) == 2}
    assert matrices.keys() == checksums.keys()
    for key, tensor in matrices.items():
        values = to_float32(tensor.read()).astype(np.float64).ravel()
        found = values @ np.cos(np.arange(len(values), dtype=np.float64))
        rounding = 2 * UNIT_ROUNDOFF * float(np.abs(values).sum())
        assert found == pytest.approx(checksums[key], abs=rounding), key


@pytest.mark.parametrize("asked", ["fp8", "compressed-tensors"])
def test_fp8_of_compressed_tensors_is_kept_under_both_names(
    asked: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As `quant_method` of its config.json, which vLLM takes, and as the form that it is."""
    skip_without_native_kernels()
    with caplog.at_level(logging.DEBUG):
        serve("ct_fp8_dynamic", tmp_path, quantization=asked)
    assert "weights: fp8 of the checkpoint" in caplog.text
    assert " of E4M3" in caplog.text
    with pytest.raises(ModelError, match="'awq', but the checkpoint is in fp8"):
        serve("ct_fp8_dynamic", tmp_path, quantization="awq")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fp8_block"])
def test_logits_in_float32_are_those_of_the_library(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    skip_without_native_kernels()
    with caplog.at_level(logging.DEBUG):
        runner = serve(name, tmp_path, dtype="float32")
    assert "decoded to float32" not in caplog.text
    kinds = [kind for begin, kind in TYPES.items() if name.startswith(begin)]
    assert kinds or name.startswith(INTEGERS)
    assert all(f" of {kind}" in caplog.text for kind in kinds)
    is_left = "activations are not rounded as it prescribes" in caplog.text
    assert is_left == (name in ("bnb_int8", "ct_nvfp4"))
    logits = torch.tensor(expected(name)["logits"])
    of_next = logits.log_softmax(dim=-1)[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])
    found = log_probabilities(runner, PROMPT)
    torch.testing.assert_close(found, of_next[:, 0], rtol=0, atol=LOGITS)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(INTEGERS)])
def test_activations_in_8_bits_are_close(name: str, tmp_path: Path) -> None:
    skip_without_native_kernels()
    exact = log_probabilities(serve(name, tmp_path, dtype="float32"), PROMPT)
    runner = serve(name, tmp_path, dtype="bfloat16")
    assert runner.executor.program.arithmetic == "8 bits"
    assert 0 < float((log_probabilities(runner, PROMPT) - exact).abs().mean()) < 0.1

"""A start compiles every kernel that later steps use; only the driver's calls are empty here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from signalbox_kernels import triton

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not triton.is_installed(), reason="Triton is not installed"),
]


@pytest.mark.parametrize("model", ["dense", "mixture", "fp8", "gptq", "gemma"])
def test_steps_of_all_kinds_compile_nothing_after_the_start(model: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_worker.runner.compiled_kernels", model],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = json.loads(done.stdout.splitlines()[-1])
    assert "_paged_attention_kernel" in compiled["start"]
    assert ("_fp8_linear_kernel" in compiled["start"]) is (model == "fp8")
    assert ("_few_rows_kernel" in compiled["start"]) is (model == "dense")
    assert ("_w4a16_kernel" in compiled["start"]) is (model == "gptq")
    assert compiled["later"] == []

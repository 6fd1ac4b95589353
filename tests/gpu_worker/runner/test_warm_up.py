"""A start compiles every kernel that later steps use; only the driver's calls are empty here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from signalbox_kernels import triton
from signalbox_worker.runner.executors.warm_up import warm_up_batches

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not triton.is_installed(), reason="Triton is not installed"),
]


def test_a_step_of_one_row_is_among_those_of_a_start() -> None:
    batches = warm_up_batches(num_tokens=64, block_size=16, max_model_len=64, vocab_size=100)
    assert min(len(batch.token_ids) for batch in batches) == 1


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

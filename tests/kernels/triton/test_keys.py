"""Steps of all shapes take the kernels that were compiled when the model was loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from signalbox_kernels import triton

pytestmark = pytest.mark.skipif(not triton.is_installed(), reason="Triton is not installed")

COMPILATIONS = {
    "_add_kernel": 1,
    "_add_shares_kernel": 1,
    "_copy_rows_kernel": 1,
    "_count_kernel": 1,
    "_draw_kernel": 2,  # a model's logits, and edited ones
    "_few_rows_kernel": 3,  # after a norm, gated besides, and with a sum
    "_fp8_linear_kernel": 2,  # few tokens, and up to 64
    "_gather_logprobs_kernel": 1,
    "_grouped_product_kernel": 4,  # in and out of experts, of few rows each and of many
    "_join_shares_kernel": 2,  # prompts and decodes
    "_paged_attention_kernel": 4,  # prompts and decodes, with both joins of shares
    "_penalise_kernel": 1,
    "_plan_work_kernel": 2,  # prompts and decodes
    "_quantize_fp8_kernel": 1,
    "_reshape_and_cache_kernel": 1,
    "_rms_norm_kernel": 2,  # alone, and after an addition
    "_rotary_and_cache_kernel": 1,
    "_route_kernel": 3,  # of tokens so few that one program sorts them, of some and of many
    "_silu_and_mul_kernel": 1,
    "_sort_kernel": 2,
    "_w4a16_kernel": 4,  # few rows and more, alone and split
}


def test_no_count_of_a_step_makes_triton_compile_again() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.count_keys"],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == COMPILATIONS

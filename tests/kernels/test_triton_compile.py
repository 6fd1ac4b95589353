"""Every Triton kernel becomes machine code for GPUs that this machine need not have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from signalbox_kernels import triton

PROGRAM = Path(__file__).with_name("compile_kernels.py")
SHARED_BYTES = 99 << 10
"""Of a block on the smallest GPUs that have bfloat16 (compute capability 8.6 and 8.9)."""
KERNELS = {
    "_add_kernel",
    "_copy_rows_kernel",
    "_copy_runs_kernel",
    "_count_kernel",
    "_draw_kernel",
    "_gather_logprobs_kernel",
    "_join_splits_kernel",
    "_paged_attention_kernel",
    "_penalise_kernel",
    "_reshape_and_cache_kernel",
    "_rms_norm_kernel",
    "_rotary_and_cache_kernel",
    "_rotary_kernel",
    "_silu_and_mul_kernel",
}


@pytest.mark.skipif(not triton.is_installed(), reason="Triton is not installed")
@pytest.mark.parametrize(
    ("capability", "dtype", "head_size"), [("90", "bfloat16", "128"), ("80", "float16", "256")]
)
def test_kernels_compile_and_fit(
    capability: str, dtype: str, head_size: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), capability, dtype, head_size],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _, _ in kernels} == KERNELS
    assert all(int(code_bytes) > 1000 for _, code_bytes, _ in kernels)
    assert all(int(shared_bytes) <= SHARED_BYTES for _, _, shared_bytes in kernels)

"""Every Triton kernel becomes machine code for GPUs that this machine need not have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from signalbox_kernels import triton

PROGRAM = Path(__file__).with_name("compile_kernels.py")
KERNELS = {
    "_copy_runs_kernel",
    "_join_splits_kernel",
    "_paged_attention_kernel",
    "_reshape_and_cache_kernel",
    "_rms_norm_kernel",
    "_rotary_and_cache_kernel",
    "_rotary_kernel",
    "_silu_and_mul_kernel",
}


@pytest.mark.skipif(not triton.is_installed(), reason="Triton is not installed")
@pytest.mark.parametrize(("capability", "dtype"), [("90", "bfloat16"), ("80", "float16")])
def test_kernels_compile(capability: str, dtype: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), capability, dtype],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = dict(line.split() for line in done.stdout.splitlines())
    assert set(sizes) == KERNELS
    assert all(int(size) > 1000 for size in sizes.values())

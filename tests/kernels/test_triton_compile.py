"""Every Triton kernel becomes machine code for GPUs that this machine need not have."""

import os
import subprocess
import sys
from collections.abc import Iterator
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


TARGETS = [("90", "bfloat16", "128"), ("80", "float16", "256")]
"""Capability, dtype and head size."""

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not triton.is_installed(), reason="Triton is not installed"),
]


@pytest.fixture(scope="module")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each target, all at once: each takes many seconds of one core."""
    cache = str(tmp_path_factory.mktemp("triton"))
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), *target],
            env=os.environ | {"TRITON_CACHE_DIR": cache, "TRITON_INTERPRET": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for target in TARGETS
    ]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_and_fit(
    target: tuple[str, str, str], compiling: list[subprocess.Popen[str]]
) -> None:
    process = compiling[TARGETS.index(target)]
    said, failure = process.communicate()
    assert process.returncode == 0, failure[-2000:]
    kernels = [line.split() for line in said.splitlines()]
    assert {name for name, _, _ in kernels} == KERNELS
    assert all(int(code_bytes) > 1000 for _, code_bytes, _ in kernels)
    assert all(int(shared_bytes) <= SHARED_BYTES for _, _, shared_bytes in kernels)

"""Every Triton kernel becomes machine code for GPUs that this machine need not have."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from signalbox_kernels import triton

PROGRAM = Path(__file__).with_name("compile_kernels.py")
CAPABILITIES = (80, 89, 90, 100, 120)
SMALL_SHARED = (80, 89, 120)
"""Those whose kernels run where a block has 99 KiB (8.6 runs what 8.0 does)."""
SHARED_BYTES = {True: 99 << 10, False: 227 << 10}
SLIGHT_SPILL = 32
"""Bytes that the assembler may spill where it takes few registers to run more warps at once."""
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

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not triton.is_installed(), reason="Triton is not installed"),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """The kernels of each capability, two of which are compiled at once."""
    cache = str(tmp_path_factory.mktemp("triton"))

    def compile_for(capability: int) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(capability)],
            env=os.environ | {"TRITON_CACHE_DIR": cache, "TRITON_INTERPRET": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CAPABILITIES, pool.map(compile_for, CAPABILITIES), strict=True))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_all_kernels_compile_and_fit(
    capability: int, compiled: dict[int, list[dict[str, Any]]]
) -> None:
    kernels = compiled[capability]
    assert {kernel["kernel"] for kernel in kernels} == KERNELS
    bound = SHARED_BYTES[capability in SMALL_SHARED]
    assert [each for each in kernels if each["shared_bytes"] > bound] == []


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_no_kernel_spills(capability: int, compiled: dict[int, list[dict[str, Any]]]) -> None:
    def bound(case: str) -> int:
        """Float32 and heads of 8 are for tests and comparisons."""
        return SLIGHT_SPILL if "float32" in case or case.endswith(" 8") else 0

    spills = [each for each in compiled[capability] if each["stack_bytes"] > bound(each["case"])]
    assert spills == []


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_keys_and_values_are_loaded_16_bytes_at_a_time(
    capability: int, compiled: dict[int, list[dict[str, Any]]]
) -> None:
    """Without the divisibility of pointers and strides each element would be a load."""
    attention = [
        each
        for each in compiled[capability]
        if each["kernel"] == "_paged_attention_kernel"
        and each["case"].split()[-1] in {"64", "96", "128", "256"}
    ]
    assert attention
    assert [each for each in attention if not each["copies_of_16_bytes"]] == []
    assert [each for each in attention if each["loads"] > 24] == []

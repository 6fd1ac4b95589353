"""Every Triton kernel becomes machine code for GPUs that this machine need not have."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
    "_add_shares_kernel",
    "_copy_rows_kernel",
    "_copy_runs_kernel",
    "_count_kernel",
    "_draw_kernel",
    "_few_rows_kernel",
    "_gather_logprobs_kernel",
    "_grouped_product_kernel",
    "_join_shares_kernel",
    "_paged_attention_kernel",
    "_penalise_kernel",
    "_plan_work_kernel",
    "_reshape_and_cache_kernel",
    "_rms_norm_kernel",
    "_rotary_and_cache_kernel",
    "_rotary_kernel",
    "_route_kernel",
    "_silu_and_mul_kernel",
    "_sort_kernel",
    "_w4a16_kernel",
}
FP8_KERNELS = {"_fp8_linear_kernel", "_quantize_fp8_kernel"}
LEAST_FP8 = 89
LEAST_DEPENDENT = 90

pytestmark = pytest.mark.skipif(not triton.is_installed(), reason="Triton is not installed")
TYPES = {80: ("bfloat16", "float32"), 90: ("bfloat16", "float16")}
"""Types that are compiled in several sizes of heads, by capability; the others compile bfloat16 in
one. Float32 takes most shared memory, of which 80 has least; float16 has the tiles of bfloat16."""
OTHERS = [capability for capability in CAPABILITIES if capability != 90]
"""Capabilities that `make test-system` compiles for; `make test` compiles for Hopper, the one with
most that is its own."""


@pytest.fixture
def kernel_cache(pytestconfig: pytest.Config, tmp_path: Path) -> Path:
    """Where Triton keeps what it compiles, by all that it depends on, for the next run of tests."""
    kept = getattr(pytestconfig, "cache", None)  # None where pytest keeps nothing
    return tmp_path if kept is None else Path(kept.mkdir("triton"))


@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(one, marks=pytest.mark.system) for one in OTHERS)]
)
def test_kernels_compile_fit_and_load_whole_lines(capability: int, kernel_cache: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(capability), *TYPES.get(capability, ())],
        env=os.environ | {"TRITON_CACHE_DIR": str(kernel_cache), "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    has_fp8 = capability >= LEAST_FP8
    assert {kernel["kernel"] for kernel in kernels} == KERNELS | (FP8_KERNELS if has_fp8 else set())

    most_shared = SHARED_BYTES[capability in SMALL_SHARED]
    assert [each for each in kernels if each["shared_bytes"] > most_shared] == []
    assert [each for each in kernels if each["stack_bytes"] > allowed_spill(each["case"])] == []
    attention = [
        each
        for each in kernels
        if each["kernel"] == "_paged_attention_kernel"
        and each["case"].split()[-1] in {"64", "96", "128", "256"}
    ]
    assert attention
    products = [each for each in kernels if each["kernel"] == "_fp8_linear_kernel"]
    assert [each for each in products if not each["copies_of_16_bytes"]] == []
    # Hopper's own sums of E4M3 are short: each ends with a tile of 128 columns, four products.
    assert [one for one in products if one["e4m3_products"] != 4 * one["sums_from_zero"]] == []
    assert any(one["e4m3_products"] for one in products) is (capability == 90)
    # Without the divisibility of pointers and strides each element would be a load.
    assert [each for each in attention if not each["copies_of_16_bytes"]] == []
    assert [each for each in attention if each["loads"] > 64] == []
    products = [each for each in kernels if each["kernel"] == "_w4a16_kernel"]
    streams = [each for each in kernels if each["kernel"] == "_few_rows_kernel"]
    assert [each for each in products + streams if not each["copies_of_16_bytes"]] == []
    assert [each for each in streams if each["loads"] > 8] == []
    early = [each for each in kernels if "launched early" in each["case"]]
    named = {"_paged_attention_kernel", "_reshape_and_cache_kernel", "_rotary_and_cache_kernel"}
    has_waits = {each["kernel"] for each in early if each["begins_with_a_wait"]}
    assert has_waits == (named if capability >= LEAST_DEPENDENT else set())
    assert all(each["begins_with_a_wait"] for each in early if each["kernel"] in named)
    assert {each["waits"] for each in kernels if each not in early} == {0}
    for sharing in (attention, products):  # one atomic of acquire and release at device scope
        assert {each["joins"] for each in sharing} == {0, 1}


def allowed_spill(case: str) -> int:
    """Float32 and heads of 8 are for tests and comparisons."""
    is_exempt = "float32" in case or case.endswith(" 8")
    return SLIGHT_SPILL if is_exempt else 0

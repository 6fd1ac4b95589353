"""Which 16-bit type PyTorch computes in."""

import pytest
import torch

from signalbox_kernels import native
from signalbox_kernels.native import ISA_VARIABLE
from signalbox_worker.device.device_choice import dtype_for_half


@pytest.mark.parametrize(
    ("machine", "feature", "limit", "dtype"),
    [
        ("x86_64", "avx512_bf16", "", torch.bfloat16),
        ("x86_64", "avx512_bf16", "amx", torch.bfloat16),
        ("x86_64", "avx512_bf16", "avx512_bf16", torch.bfloat16),
        ("x86_64", "avx512_bf16", "avx512_vnni", torch.float32),
        ("x86_64", "avx512_vnni", "", torch.float32),
        ("aarch64", "bf16", "", torch.bfloat16),
        ("aarch64", "bf16", "neon_i8mm", torch.float32),
        ("aarch64", "bf16", "portable", torch.float32),
    ],
)
def test_bfloat16_needs_a_processor_that_has_it_and_a_limit_that_permits_it(
    monkeypatch: pytest.MonkeyPatch, machine: str, feature: str, limit: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(native, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {feature: True})
    monkeypatch.setenv(ISA_VARIABLE, limit)
    assert dtype_for_half(torch.device("cpu")) is dtype

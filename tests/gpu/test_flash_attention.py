"""flash-attn and FlashInfer, where installed: what the stand-ins of the CPU's tests stand for."""

from dataclasses import replace

import pytest
import torch

from signalbox_worker.models.attention import AttentionShape
from signalbox_worker.models.attention.backend_check import fault_of
from signalbox_worker.models.attention.flash_backend import FlashAttention
from signalbox_worker.models.attention.flash_kernels import PACKAGED_KERNELS, FlashKernel


@pytest.mark.parametrize("kernel", PACKAGED_KERNELS, ids=lambda kernel: kernel.name)
def test_attention_is_torchs(kernel: FlashKernel) -> None:
    if not kernel.is_installed():
        pytest.skip(f"{kernel.package} is not installed")
    if torch.cuda.get_device_capability()[0] not in kernel.generations:
        pytest.skip(f"{kernel.name} does not page on this device")
    shape = AttentionShape(
        num_layers=2,
        num_heads=8,
        num_kv_heads=2,
        head_size=128,
        block_size=kernel.block_sizes[0],
        scale=0.1,
        sliding_windows=(None, 9 if kernel.has_windows else None),
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
    )
    assert fault_of(lambda each: FlashAttention(each, kernel), shape) is None
    if not kernel.caps_scores:
        return
    capped = replace(shape, soft_cap=20.0)
    assert fault_of(lambda each: FlashAttention(each, kernel), capped) is None

"""Backends that hold K and V in 8 bits agree with plain PyTorch; the others refuse them by name."""

from typing import Any

import pytest
import torch

from signalbox_worker.models.attention import (
    AttentionShape,
    attention_backend,
    choose_attention_backend,
    selection,
)
from signalbox_worker.models.attention.backend_check import fault_of
from signalbox_worker.models.attention.flash_kernels import PACKAGED_KERNELS
from tests.gpu_worker.models.attention.device_attention import make_shape

LAYERS: dict[str, Any] = {"num_layers": 3, "sliding_windows": (None, 8, None)}


def make_fp8_shape(**changes: Any) -> AttentionShape:
    scales = ((0.3, 1.0), (1.0, 7.0), (2.5, 0.04))
    return make_shape(**LAYERS | {"fp8_scales": scales} | changes)


def make_int8_shape(**changes: Any) -> AttentionShape:
    return make_shape(**LAYERS | {"has_int8_cache": True} | changes)


SHAPES = {"FP8": make_fp8_shape, "int8": make_int8_shape}
of_8_bits = pytest.mark.parametrize("kv_dtype", SHAPES)


@of_8_bits
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [{}, {"head_size": 18, "block_size": 5}], ids=str)
def test_torch_agrees_with_the_reference(
    kv_dtype: str, soft_cap: float | None, dtype: torch.dtype, sizes: dict[str, int]
) -> None:
    sizes = {"num_heads": 4, "num_kv_heads": 2} | sizes
    shape = SHAPES[kv_dtype](soft_cap=soft_cap, dtype=dtype, **sizes)
    assert fault_of(lambda each: attention_backend("torch", each), shape) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kv_dtype", "soft_cap", "name"), [("FP8", 2.0, "triton"), ("int8", None, "triton_plain")]
)
def test_triton_agrees_with_the_reference(
    triton_device: str, kv_dtype: str, soft_cap: float | None, name: str
) -> None:
    one_layer = {"num_layers": 1, "sliding_windows": (8,)}
    shape = SHAPES[kv_dtype](device=triton_device, soft_cap=soft_cap, **one_layer)
    assert fault_of(lambda each: attention_backend(name, each), shape) is None


def test_a_block_takes_a_byte_for_each_element() -> None:
    wide, narrow = make_shape(**LAYERS), make_fp8_shape()
    assert wide.block_bytes == 4 * narrow.block_bytes
    assert attention_backend("torch", narrow).block_bytes == narrow.block_bytes
    assert make_shape(**LAYERS, dtype=torch.bfloat16).block_bytes == 2 * narrow.block_bytes


def test_a_block_in_int8_has_four_bytes_more_for_each_token_and_head() -> None:
    fp8, int8 = make_fp8_shape(), make_int8_shape()
    assert int8.block_bytes * fp8.head_size == fp8.block_bytes * (fp8.head_size + 4)
    assert attention_backend("torch", int8).block_bytes == int8.block_bytes


@pytest.mark.parametrize("name", [kernel.name for kernel in PACKAGED_KERNELS])
@of_8_bits
def test_flash_attention_is_refused_by_name(name: str, kv_dtype: str) -> None:
    able = "torch, triton, triton_pdl, triton_plain"
    problem = f"'{name}' holds no K and V in {kv_dtype}; use {able}, or kv_cache"
    with pytest.raises(ValueError, match=problem):
        choose_attention_backend(name, SHAPES[kv_dtype]())


@of_8_bits
def test_auto_passes_over_what_holds_none(
    kv_dtype: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(selection, "candidates", lambda device: ("flash_attn_2", "torch"))
    caplog.set_level("INFO")
    assert choose_attention_backend("auto", SHAPES[kv_dtype]()).name == "torch"
    assert "auto is torch, in blocks of 16 tokens; attention_backend 'flash_attn_2' holds no" in (
        caplog.text
    )

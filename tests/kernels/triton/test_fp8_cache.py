"""K and V in E4M3: Triton writes what PyTorch would, and reads every code exactly."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import attention, kv_cache

E4M3 = torch.float8_e4m3fn
HALF_OF_A_CODE = 2.0**-4
"""Largest relative error of a value that E4M3 rounds, from its least normal one, 2^-6, on."""


def make_values() -> Tensor:
    """Returns [64, head_size 64] of every finite code, values between two, and beyond all."""
    codes = torch.arange(256, dtype=torch.uint8).view(E4M3).float()
    finite = codes[codes.isfinite()].sort().values
    ties = (finite[1:] + finite[:-1]) / 2
    near = torch.cat([ties.nextafter(ties + 1), ties.nextafter(ties - 1)])
    beyond = torch.tensor([449.0, 464.0, 480.0, 1e9, math.inf, 1e-9, 2.0**-10, math.nan])
    chosen = torch.cat([finite, ties, near, beyond, -beyond])
    random = torch.randn(64 * 64 - len(chosen), generator=torch.Generator().manual_seed(0))
    return torch.cat([chosen, 40 * random]).view(64, 64)


def make_cache(*, device: str, num_kv_heads: int = 4, head_size: int = 64) -> Tensor:
    """A layer of blocks as the backends lay them out, of NaN."""
    pool = torch.full((5, 2, num_kv_heads, 16, head_size), 0x7F, dtype=torch.uint8, device=device)
    return pool.view(E4M3).transpose(2, 3)


def assert_same_codes(actual: Tensor, expected: Tensor) -> None:
    assert torch.equal(actual.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_values_are_rounded_to_even_and_saturate(triton_device: str, scale: float) -> None:
    values = make_values().view(16, 4, 64).to(triton_device) * scale
    cache, expected = (make_cache(device=triton_device) for _ in range(2))
    slots = torch.randperm(5 * 16)[:16].to(triton_device)
    scales: dict[str, Any] = {"k_scale": scale, "v_scale": 2 * scale}

    ops.reshape_and_cache(values, values.flip(0), cache, slots, **scales)

    kv_cache.reshape_and_cache(values, values.flip(0), expected, slots, **scales)
    assert_same_codes(cache, expected)
    written = expected[slots // 16, 0, slots % 16].float()
    assert torch.equal(written.isnan(), values.isnan())
    inside = values.abs().clamp(max=448 * scale) >= 2.0**-6 * scale
    bounded = values.clamp(-448 * scale, 448 * scale)
    error = (written * scale - bounded).abs()[inside] / bounded.abs()[inside]
    # of the rounding to a code, and of float32 in the product with 1 / scale
    assert error.max() <= HALF_OF_A_CODE + 2.0**-22


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotated_keys_are_written_as_the_reference_does(
    triton_device: str, dtype: torch.dtype
) -> None:
    query = torch.randn(16, 8, 64, device=triton_device).to(dtype)
    values = make_values().nan_to_num(7.0, posinf=500.0, neginf=-500.0).view(16, 4, 64)
    key_value = values[:, None].repeat(1, 2, 1, 1).to(triton_device, dtype)
    # quarter turns, which round nothing: the interpreter rounds bfloat16 in its own way
    turned = torch.randint(2, (16, 1, 32)).repeat(1, 1, 2).to(triton_device, dtype)
    sign = torch.tensor([-1.0, 1.0]).repeat_interleave(32).to(triton_device, dtype)
    angles = (1 - turned, turned * sign)
    cache, expected = (make_cache(device=triton_device) for _ in range(2))
    slots = torch.randperm(5 * 16)[:16].to(triton_device)
    scales: dict[str, Any] = {"k_scale": 0.7, "v_scale": 1.5}
    expected_query = query.clone()

    ops.rotary_and_cache(query, key_value, *angles, cache, slots, **scales)

    kv_cache.rotary_and_cache(expected_query, key_value, *angles, expected, slots, **scales)
    assert torch.equal(query, expected_query)
    assert_same_codes(cache, expected)


@pytest.mark.parametrize("v_scale", [1.0, 0.25])
def test_attention_reads_all_256_codes_exactly(triton_device: str, v_scale: float) -> None:
    """Attention to one key gives its V."""
    codes = torch.arange(256, dtype=torch.uint8, device=triton_device).view(E4M3)
    cache = torch.zeros(5, 2, 4, 16, 64, dtype=torch.uint8, device=triton_device).view(E4M3)
    cache[3, 1, :, 0] = codes.view(4, 64)
    query = torch.randn(1, 4, 64, device=triton_device)

    out = ops.paged_attention(
        query,
        cache.transpose(2, 3),
        query_start=torch.tensor([0, 1], device=triton_device),
        context_lens=torch.tensor([1], device=triton_device),
        block_tables=torch.tensor([[3]], dtype=torch.int32, device=triton_device),
        scale=0.1,
        v_scale=v_scale,
    )

    expected = codes.float() * v_scale
    assert out.isfinite().sum() == 254
    torch.testing.assert_close(out.flatten(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_over_codes_matches_the_reference(triton_device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cache = make_cache(device=triton_device, num_kv_heads=2)
    key, value = (3 * torch.randn(2, 67, 2, 64, device=triton_device)).to(dtype)
    tables = torch.tensor([[4, 1, 0], [2, 3, 0]], dtype=torch.int32, device=triton_device)
    seq = torch.tensor([0] * 35 + [1] * 32, device=triton_device)
    position = torch.cat([torch.arange(35), torch.arange(32)]).to(triton_device)
    slots = tables[seq, position // 16].long() * 16 + position % 16
    scales: dict[str, Any] = {"k_scale": 0.02, "v_scale": 0.4}
    ops.reshape_and_cache(key, value, cache, slots, **scales)
    query = torch.randn(6, 6, 64, device=triton_device).to(dtype)
    problem: dict[str, Any] = {
        "query_start": torch.tensor([0, 5, 6], device=triton_device),
        "context_lens": torch.tensor([35, 32], device=triton_device),
        "block_tables": tables,
        "scale": 0.125,
        "soft_cap": 20.0,
    }

    actual = ops.paged_attention(query, cache, **problem, **scales)

    expected = attention.paged_attention(query, cache, **problem, **scales)
    assert expected.isfinite().all()
    # Both take the same codes, and their products are exact in bfloat16 as well; a result of up to
    # 4 is rounded to 8 bits, which the interpreter cuts off.
    tolerance = 2e-5 if dtype is torch.float32 else 4 * 2.0**-8
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_a_cache_of_another_type_is_refused(triton_device: str) -> None:
    key = torch.zeros(1, 4, 64, device=triton_device)
    slots = torch.zeros(1, dtype=torch.int64, device=triton_device)
    cache = make_cache(device=triton_device).view(torch.float8_e5m2)
    with pytest.raises(ValueError, match=r"float8_e5m2; it must be .*float32 or float8_e4m3fn"):
        ops.reshape_and_cache(key, key, cache, slots)


def test_blocks_are_copied_bit_for_bit(triton_device: str) -> None:
    """Blocks of E4M3 are bytes, NaNs of either sign included."""
    pool = torch.randint(0, 256, (8, 2 * 2 * 16 * 64), dtype=torch.uint8, device=triton_device)
    pool[2:4] = torch.tensor([0x7F, 0xFF], dtype=torch.uint8, device=triton_device)[:, None]
    before, ram = pool.clone(), torch.zeros(4, pool.shape[1], dtype=torch.uint8)
    ops.swap_blocks(pool, ram, torch.tensor([2, 3, 5]), torch.tensor([0, 3, 1]))
    ops.copy_blocks(pool, torch.tensor([3, 5]), torch.tensor([6, 7]))
    assert torch.equal(pool[6:], before[[3, 5]])
    pool[2:6] = 0
    ops.swap_blocks(ram, pool, torch.tensor([0, 3, 1]), torch.tensor([2, 3, 5]))
    assert torch.equal(pool[[2, 3, 5]], before[[2, 3, 5]])

"""K and V in int8 with a scale for each token and head: Triton writes what PyTorch would."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import attention, kv_cache


class Cache(NamedTuple):
    """A layer's views of a pool of five blocks."""

    pool: Tensor
    kv: Tensor
    scales: Tensor


def make_cache(*, device: str, num_kv_heads: int = 4, head_size: int = 64) -> Cache:
    """Codes and scales as the backends lay them out, of NaN."""
    codes = 16 * head_size
    sizes = (5, 2, num_kv_heads, codes + 4 * 16)
    pool = torch.full(sizes, 0xFF, dtype=torch.uint8, device=device)
    kv = pool[..., :codes].view(torch.int8).unflatten(-1, (16, head_size)).transpose(2, 3)
    return Cache(pool, kv, pool[..., codes:].view(torch.float32).transpose(2, 3))


def make_values(dtype: torch.dtype) -> Tensor:
    """Returns [32, heads 4, head_size 64] of many magnitudes, zeros, ties, what is not finite."""
    values = torch.randn(32, 4, 64, generator=torch.Generator().manual_seed(0))
    powers = (-149, -140, -126, -121, -120, -119, -60, 0, 60, 123)
    for token, power in enumerate(powers):
        # the interpreter reads the smallest numbers in bfloat16 in its own way
        values[token] *= 2.0 ** (power if dtype is torch.float32 else max(power, -60))
    values[10], values[11, :, 5:] = 0.0, 0.0
    values[12] = torch.arange(64) * 4 - 127 + 0.5  # ties, for the scale of 127
    values[12, :, 0] = 127.0
    for token, value in enumerate((math.nan, math.inf, -math.inf)):
        values[13 + token, token, 9 + 40 * (token % 2)] = value
    return values.to(dtype)


def assert_same_bits(actual: Cache, expected: Cache) -> None:
    assert torch.equal(actual.kv, expected.kv)
    torch.testing.assert_close(actual.scales, expected.scales, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_and_scales_are_those_of_the_reference(
    triton_device: str, dtype: torch.dtype
) -> None:
    values = make_values(dtype).to(triton_device)
    cache, expected = (make_cache(device=triton_device) for _ in range(2))
    slots = torch.randperm(5 * 16)[:32].to(triton_device)
    slots[4] = -1  # padding

    ops.reshape_and_cache(values, values.flip(0), cache.kv, slots, token_scales=cache.scales)

    kv_cache.reshape_and_cache(
        values, values.flip(0), expected.kv, slots, token_scales=expected.scales
    )
    assert_same_bits(cache, expected)


@pytest.mark.parametrize(
    ("dtype", "num_kv_heads"), [(torch.float32, 4), (torch.bfloat16, 4), (torch.bfloat16, 20)]
)
def test_rotated_keys_are_written_as_the_reference_does(
    triton_device: str, dtype: torch.dtype, num_kv_heads: int
) -> None:
    query = torch.randn(32, 2 * num_kv_heads, 64, device=triton_device).to(dtype)
    values = make_values(dtype).nan_to_num(7.0, posinf=500.0, neginf=-500.0)
    key_value = values[:, None, :1].repeat(1, 2, num_kv_heads, 1).to(triton_device)
    # quarter turns, which round nothing: the interpreter rounds bfloat16 in its own way
    turned = torch.randint(2, (32, 1, 32)).repeat(1, 1, 2).to(triton_device, dtype)
    sign = torch.tensor([-1.0, 1.0]).repeat_interleave(32).to(triton_device, dtype)
    angles = (1 - turned, turned * sign)
    cache, expected = (
        make_cache(device=triton_device, num_kv_heads=num_kv_heads) for _ in range(2)
    )
    slots = torch.randperm(5 * 16)[:32].to(triton_device)
    slots[9] = -1
    expected_query = query.clone()

    ops.rotary_and_cache(query, key_value, *angles, cache.kv, slots, token_scales=cache.scales)

    kv_cache.rotary_and_cache(
        expected_query, key_value, *angles, expected.kv, slots, token_scales=expected.scales
    )
    assert torch.equal(query, expected_query)
    assert_same_bits(cache, expected)


@pytest.mark.parametrize(
    ("dtype", "rule"),
    [
        (torch.float32, {"soft_cap": 20.0}),
        (torch.bfloat16, {}),
        (torch.bfloat16, {"sliding_window": 9}),
    ],
)
def test_attention_over_codes_matches_the_reference(
    triton_device: str, dtype: torch.dtype, rule: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    cache = make_cache(device=triton_device, num_kv_heads=2)
    key, value = (3 * torch.randn(2, 67, 2, 64, device=triton_device)).to(dtype)
    key, value = key * torch.rand(67, 2, 1, device=triton_device).to(dtype), value + 1
    tables = torch.tensor([[4, 1, 0], [2, 3, 0]], dtype=torch.int32, device=triton_device)
    seq = torch.tensor([0] * 35 + [1] * 32, device=triton_device)
    position = torch.cat([torch.arange(35), torch.arange(32)]).to(triton_device)
    slots = tables[seq, position // 16].long() * 16 + position % 16
    ops.reshape_and_cache(key, value, cache.kv, slots, token_scales=cache.scales)
    query = torch.randn(6, 6, 64, device=triton_device).to(dtype)
    problem: dict[str, Any] = rule | {
        "query_start": torch.tensor([0, 5, 6], device=triton_device),
        "context_lens": torch.tensor([35, 32], device=triton_device),
        "block_tables": tables,
        "scale": 0.125,
        "token_scales": cache.scales,
    }

    actual = ops.paged_attention(query, cache.kv, **problem)

    expected = attention.paged_attention(query, cache.kv, **problem)
    assert expected.isfinite().all()
    # Both take the same codes, which are exact in bfloat16; a result of up to 4 is rounded to 8
    # bits, which the interpreter cuts off.
    tolerance = 2e-5 if dtype is torch.float32 else 4 * 2.0**-8
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_codes_without_scales_and_scales_without_codes_are_refused(triton_device: str) -> None:
    key = torch.zeros(1, 4, 64, device=triton_device)
    slots = torch.zeros(1, dtype=torch.int64, device=triton_device)
    cache = make_cache(device=triton_device)
    with pytest.raises(ValueError, match=r"the cache is torch.int8; .* int8 with token_scales"):
        ops.reshape_and_cache(key, key, cache.kv, slots)
    with pytest.raises(ValueError, match=r"the cache is torch.float32"):
        ops.reshape_and_cache(key, key, cache.kv.float(), slots, token_scales=cache.scales)
    with pytest.raises(ValueError, match=r"scales are \(5, 2, 16, 3\)"):
        ops.reshape_and_cache(key, key, cache.kv, slots, token_scales=cache.scales[..., :3])

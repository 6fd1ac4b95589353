"""Each op against a naive loop; an implementation for a device must pass the same."""

import math

import pytest
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import registry
from signalbox_kernels.torch.linear import pack_weight
from signalbox_kernels.torch.row_ops import is_finite


def make_cache(
    *, num_blocks: int, num_kv_heads: int, head_size: int, block_size: int = 16
) -> Tensor:
    """A layer's view with strides that are not those of its shape."""
    stored = torch.randn(num_blocks, 3, 2, num_kv_heads, block_size, head_size)
    return stored[:, 1].transpose(2, 3)


def naive_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    window: int | None,
    is_causal: bool,
) -> Tensor:
    """One sequence, one query and one head at a time; keys are [length, heads, size]."""
    out = torch.zeros_like(query)
    group = query.shape[1] // keys.shape[1]
    for i in range(len(query)):
        position = len(keys) - len(query) + i
        first = 0 if window is None else max(0, position - window + 1)
        end = len(keys) if window is None else position + window
        end = position + 1 if is_causal else end
        for head in range(query.shape[1]):
            seen = keys[first:end, head // group]
            scores = torch.tensor([float(query[i, head] @ key) * scale for key in seen])
            weights = torch.softmax(scores, dim=0)
            out[i, head] = weights @ values[first:end, head // group]
    return out


@pytest.mark.parametrize("head_size", [64, 80])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (9, 3)])
@pytest.mark.parametrize("window", [None, 5, 20])
@pytest.mark.parametrize("is_causal", [True, False])
def test_paged_attention_matches_a_naive_loop(
    head_size: int, num_heads: int, num_kv_heads: int, window: int | None, is_causal: bool
) -> None:
    torch.manual_seed(0)
    cache = make_cache(num_blocks=9, num_kv_heads=num_kv_heads, head_size=head_size)
    tables = torch.tensor([[3, 7, 1], [5, 0, 0], [2, 8, 0]], dtype=torch.int32)
    query_lens, context_lens = [1, 5, 17], [33, 16, 17]
    query = torch.randn(sum(query_lens), num_heads, head_size)
    scale = head_size**-0.5

    actual = ops.paged_attention(
        query,
        cache,
        query_start=torch.tensor([0, 1, 6, 23]),
        context_lens=torch.tensor(context_lens),
        block_tables=tables,
        scale=scale,
        is_causal=is_causal,
        sliding_window=window,
    )

    for i, (chunk, length) in enumerate(zip(query.split(query_lens), context_lens, strict=True)):
        slots = [(int(tables[i, p // 16]), p % 16) for p in range(length)]
        keys = torch.stack([cache[block, 0, offset] for block, offset in slots])
        values = torch.stack([cache[block, 1, offset] for block, offset in slots])
        expected = naive_attention(
            chunk, keys, values, scale=scale, window=window, is_causal=is_causal
        )
        start = sum(query_lens[:i])
        torch.testing.assert_close(actual[start : start + len(chunk)], expected)


@pytest.mark.parametrize("head_size", [64, 80])
def test_reshape_and_cache_writes_slots_and_nothing_else(head_size: int) -> None:
    cache = make_cache(num_blocks=4, num_kv_heads=3, head_size=head_size)
    expected = cache.clone()
    key, value = torch.randn(2, 5, 3, head_size)
    slots = [17, 63, -1, 0, 30]

    ops.reshape_and_cache(key, value, cache, torch.tensor(slots))

    for i, slot in enumerate(slots):
        if slot >= 0:
            expected[slot // 16, 0, slot % 16] = key[i]
            expected[slot // 16, 1, slot % 16] = value[i]
    torch.testing.assert_close(cache, expected, rtol=0, atol=0)


def test_swap_and_copy_move_whole_blocks_and_leave_the_rest() -> None:
    gpu = torch.randint(0, 256, (8, 1000), dtype=torch.uint8)
    cpu = torch.zeros(5, 1000, dtype=torch.uint8)
    before = gpu.clone()

    ops.swap_blocks(gpu, cpu, torch.tensor([2, 3, 4, 7]), torch.tensor([0, 1, 2, 4]))
    ops.copy_blocks(gpu, torch.tensor([7, 0]), torch.tensor([1, 5]))

    assert torch.equal(cpu, before[[2, 3, 4, 0, 7]] * torch.tensor([1, 1, 1, 0, 1])[:, None])
    assert torch.equal(gpu, before[[0, 7, 2, 3, 4, 0, 6, 7]])


@pytest.mark.parametrize("size", [64, 81])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_rounds_before_it_weighs(size: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(7, size).to(dtype), torch.randn(size).to(dtype)
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)

    actual = ops.rms_norm(x, weight, eps=1e-5)

    torch.testing.assert_close(actual, weight * normed.to(dtype))


def test_fused_add_rms_norm_updates_the_residual() -> None:
    x, residual, weight = torch.randn(3, 64), torch.randn(3, 64), torch.randn(64)
    total = x + residual

    actual = ops.fused_add_rms_norm(x, residual, weight, eps=1e-6)

    torch.testing.assert_close(residual, total, rtol=0, atol=0)
    torch.testing.assert_close(actual, ops.rms_norm(total, weight, eps=1e-6), rtol=0, atol=0)


@pytest.mark.parametrize("head_size", [64, 80])
def test_rotary_embedding_turns_each_pair(head_size: int) -> None:
    half = head_size // 2
    angles = torch.randn(5, half)
    cos = torch.cat([angles.cos()] * 2, dim=-1)[:, None]
    signed_sin = torch.cat([-angles.sin(), angles.sin()], dim=-1)[:, None]
    heads = torch.randn(5, 6, head_size)
    rotated = heads.clone()[:, :4]

    ops.rotary_embedding(rotated, cos, signed_sin)

    pairs = torch.complex(heads[:, :4, :half], heads[:, :4, half:])
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    torch.testing.assert_close(rotated, torch.cat([turned.real, turned.imag], dim=-1))


def test_silu_and_mul_matches_its_formula() -> None:
    gate, up = torch.randn(2, 3, 40)
    expected = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(ops.silu_and_mul(torch.cat([gate, up], dim=-1)), expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_is_finite_finds_the_row(value: float) -> None:
    rows = torch.randn(4, 100)
    rows[1, 50] = value
    rows[3] = 3e38  # finite, though its sum is not
    assert is_finite(rows).tolist() == [True, False, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [1, 7, 40])
def test_packed_weight_multiplies_as_the_plain_one(dtype: torch.dtype, num_tokens: int) -> None:
    weight, bias = torch.randn(48, 80).to(dtype), torch.randn(48).to(dtype)
    x = torch.randn(num_tokens, 80).to(dtype)
    expected = x.float() @ weight.float().T + bias.float()
    torch.testing.assert_close(
        pack_weight(weight).apply(x, bias).float(), expected, rtol=2e-2, atol=1e-1
    )


def test_registered_implementation_serves_its_device_until_it_is_unregistered() -> None:
    def zeros(gate_up: Tensor) -> Tensor:
        return gate_up.new_zeros(gate_up.shape[0], gate_up.shape[1] // 2)

    registry.register("silu_and_mul", "cpu", zeros)
    try:
        assert not ops.silu_and_mul(torch.ones(1, 4)).any()
    finally:
        registry.unregister("silu_and_mul", "cpu")
    assert ops.silu_and_mul(torch.ones(1, 4)).all()


def test_unknown_op_is_refused() -> None:
    with pytest.raises(KeyError, match="no op 'no_such_op'"):
        registry.register("no_such_op", "cpu", torch.relu)

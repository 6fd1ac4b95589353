"""Triton's small kernels equal the reference, under the interpreter unless there is a GPU."""

import math
from inspect import signature

import pytest
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import kv_cache, registry, row_ops

DTYPES = [torch.float32, torch.bfloat16]


def assert_equal(actual: Tensor, expected: Tensor, *, num_roundings: int = 1) -> None:
    """The interpreter cuts bfloat16 off where a GPU rounds: each time a unit in the last place."""
    rtol = num_roundings * 2.0**-7 if expected.dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol)


def make_cache(*, head_size: int, num_kv_heads: int, dtype: torch.dtype, device: str) -> Tensor:
    """The second of three layers, in blocks of 16 as the attention backends lay them out."""
    stored = torch.randn(4, 3, 2, num_kv_heads, 16, head_size, device=device).to(dtype)
    return stored[:, 1].transpose(2, 3)


def make_angles(
    *, num_tokens: int, head_size: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor]:
    angles = torch.randn(num_tokens, 1, head_size // 2, device=device)
    sin = angles.sin()
    return (
        torch.cat([angles.cos()] * 2, dim=-1).to(dtype),
        torch.cat([-sin, sin], dim=-1).to(dtype),
    )


@pytest.mark.parametrize("head_size", [64, 80])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reshape_and_cache_writes_slots_and_nothing_else(
    triton_device: str, head_size: int, dtype: torch.dtype
) -> None:
    cache = make_cache(head_size=head_size, num_kv_heads=3, dtype=dtype, device=triton_device)
    expected = cache.clone()
    key, value = torch.randn(2, 5, 3, head_size, device=triton_device).to(dtype)
    slots = torch.tensor([17, 63, -1, 0, 30], device=triton_device)

    ops.reshape_and_cache(key, value, cache, slots)

    kv_cache.reshape_and_cache(key, value, expected, slots)
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("block_bytes", [1024, 1001])  # whole words, and not
def test_copy_joins_neighbours_and_leaves_the_rest(triton_device: str, block_bytes: int) -> None:
    pool = torch.randint(0, 256, (12, block_bytes), dtype=torch.uint8, device=triton_device)
    expected = pool.clone()
    src, dst = torch.tensor([3, 0, 2, 2, 11]), torch.tensor([7, 9, 6, 5, 1])

    ops.copy_blocks(pool, src, dst)

    kv_cache.copy_blocks(expected, src, dst)
    assert torch.equal(pool, expected)


def test_copies_of_any_size_are_launches_that_cuda_takes(
    triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of 512 blocks of 2 MiB, and more runs than a grid's second dimension has."""
    if triton_device != "cpu":
        pytest.skip("tensors without memory are refused where kernels are compiled")
    from signalbox_kernels.triton import blocks

    grids: list[tuple[int, int]] = []
    num_runs: list[int] = []

    class Launches:
        def __getitem__(self, grid: tuple[int, int]) -> "Launches":
            grids.append(grid)
            return self

        def __call__(
            self, source: Tensor, target: Tensor, runs: Tensor, *sizes: int, **_: int
        ) -> None:
            num_runs.append(len(runs))

    monkeypatch.setattr(blocks, "_copy_runs_kernel", Launches())
    large = torch.empty(1024, 2 << 20, dtype=torch.uint8, device="meta")
    blocks.copy_blocks(large, torch.arange(512), torch.arange(512) + 512)
    small = torch.empty(1 << 18, 8, dtype=torch.uint8, device="meta")
    evens = torch.arange(0, 1 << 17, 2)
    blocks.copy_blocks(small, evens, evens + (1 << 17))
    assert grids[0] == (512 * (2 << 20) // 8 // 2048, 1)
    assert max(grid[1] for grid in grids) <= 65535
    assert [grid[1] for grid in grids] == num_runs
    assert sum(num_runs) == 1 + len(evens)


def test_swap_goes_out_and_back(triton_device: str) -> None:
    gpu = torch.randint(0, 256, (8, 1000), dtype=torch.uint8, device=triton_device)
    cpu, before = torch.zeros(5, 1000, dtype=torch.uint8), gpu.clone()
    src, dst = torch.tensor([4, 2, 3, 7]), torch.tensor([2, 0, 1, 4])

    ops.swap_blocks(gpu, cpu, src, dst)
    gpu[src.to(triton_device)] = 0
    ops.swap_blocks(cpu, gpu, dst, src)

    assert torch.equal(gpu, before)
    assert not cpu[3].any()


def test_runs_are_found_in_any_order(triton_device: str) -> None:
    from signalbox_kernels.triton.blocks import block_runs

    runs = block_runs(torch.tensor([9, 4, 3, 5, 5]), torch.tensor([2, 7, 6, 8, 1]))

    assert runs.tolist() == [[3, 6, 2], [5, 1, 1], [5, 8, 1], [9, 2, 1]]
    assert block_runs(torch.arange(40), torch.arange(40) + 3).tolist() == [[0, 3, 40]]


def test_a_block_outside_its_pool_is_refused(triton_device: str) -> None:
    pool = torch.zeros(4, 8, dtype=torch.uint8, device=triton_device)
    with pytest.raises(ValueError, match="copy_blocks: a block is outside its pool of 4"):
        ops.copy_blocks(pool, torch.tensor([1]), torch.tensor([4]))


@pytest.mark.parametrize("size", [64, 81])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_matches_the_reference(triton_device: str, size: int, dtype: torch.dtype) -> None:
    x = torch.randn(5, size, device=triton_device).to(dtype)
    weight = torch.randn(size, device=triton_device).to(dtype)

    assert_equal(
        ops.rms_norm(x, weight, eps=1e-5), row_ops.rms_norm(x, weight, eps=1e-5), num_roundings=2
    )


def test_rms_norm_reads_heads_where_they_lie(triton_device: str) -> None:
    heads = torch.randn(3, 6, 16, device=triton_device)[:, 2:4]
    weight = torch.randn(16, device=triton_device)

    assert_equal(ops.rms_norm(heads, weight, eps=1e-5), row_ops.rms_norm(heads, weight, eps=1e-5))


@pytest.mark.parametrize("size", [64, 81])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_add_rms_norm_updates_the_residual(
    triton_device: str, size: int, dtype: torch.dtype
) -> None:
    x, residual = torch.randn(2, 4, size, device=triton_device).to(dtype)
    weight = torch.randn(size, device=triton_device).to(dtype)
    expected_residual = residual.clone()
    expected = row_ops.fused_add_rms_norm(x, expected_residual, weight, eps=1e-5)

    actual = ops.fused_add_rms_norm(x, residual, weight, eps=1e-5)

    assert_equal(residual, expected_residual)
    assert_equal(actual, expected, num_roundings=3)


@pytest.mark.parametrize("head_size", [64, 80])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_embedding_turns_heads_in_place(
    triton_device: str, head_size: int, dtype: torch.dtype
) -> None:
    stored = torch.randn(3, 20, head_size, device=triton_device).to(dtype)
    cos, signed_sin = make_angles(
        num_tokens=3, head_size=head_size, dtype=dtype, device=triton_device
    )
    expected = stored.clone()
    row_ops.rotary_embedding(expected[:, :18], cos, signed_sin)

    ops.rotary_embedding(stored[:, :18], cos, signed_sin)

    assert_equal(stored, expected, num_roundings=3)
    assert torch.equal(stored[:, 18:], expected[:, 18:])


@pytest.mark.parametrize("head_size", [64, 80])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_and_cache_does_both_at_once(
    triton_device: str, head_size: int, dtype: torch.dtype
) -> None:
    cache = make_cache(head_size=head_size, num_kv_heads=2, dtype=dtype, device=triton_device)
    expected_cache = cache.clone()
    heads = torch.randn(4, 22, head_size, device=triton_device).to(dtype)
    query, key_value = heads[:, :18], heads[:, 18:].view(4, 2, 2, head_size)
    expected_query, keys_and_values = query.clone(), key_value.clone()
    cos, signed_sin = make_angles(
        num_tokens=4, head_size=head_size, dtype=dtype, device=triton_device
    )
    slots = torch.tensor([5, -1, 48, 31], device=triton_device)
    kv_cache.rotary_and_cache(expected_query, key_value, cos, signed_sin, expected_cache, slots)

    ops.rotary_and_cache(query, key_value, cos, signed_sin, cache, slots)

    assert_equal(query, expected_query, num_roundings=3)
    assert_equal(cache, expected_cache, num_roundings=3)
    assert torch.equal(key_value, keys_and_values)


@pytest.mark.parametrize("head_size", [64, 80])
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_are_normed_on_the_way_into_the_cache(
    triton_device: str, head_size: int, is_wide: bool, dtype: torch.dtype
) -> None:
    cache = make_cache(head_size=head_size, num_kv_heads=2, dtype=dtype, device=triton_device)
    expected_cache = cache.clone()
    heads = torch.randn(4, 22, head_size, device=triton_device).mul_(3.0).to(dtype)
    query, key_value = heads[:, :18], heads[:, 18:].view(4, 2, 2, head_size)
    expected_query = query.clone()
    cos, signed_sin = make_angles(
        num_tokens=4, head_size=head_size, dtype=dtype, device=triton_device
    )
    weights = torch.rand(2, head_size, device=triton_device).to(torch.float32 if is_wide else dtype)
    norms = (weights[0] + 0.5, weights[1])
    slots = torch.tensor([5, -1, 48, 31], device=triton_device)
    kv_cache.rotary_and_cache(
        expected_query, key_value, cos, signed_sin, expected_cache, slots, norms=norms, eps=1e-6
    )

    ops.rotary_and_cache(query, key_value, cos, signed_sin, cache, slots, norms=norms, eps=1e-6)

    assert_equal(query, expected_query, num_roundings=5)
    assert_equal(cache, expected_cache, num_roundings=5)


@pytest.mark.parametrize("size", [64, 81, 1500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul_matches_the_reference(
    triton_device: str, size: int, dtype: torch.dtype
) -> None:
    gate_up = torch.randn(3, 2 * size, device=triton_device).to(dtype)
    assert_equal(ops.silu_and_mul(gate_up), row_ops.silu_and_mul(gate_up), num_roundings=2)


@pytest.mark.parametrize("vocab_size", [33, 5000])  # a chunk, and more than one
def test_gather_logprobs_matches_the_reference(triton_device: str, vocab_size: int) -> None:
    torch.manual_seed(0)
    logits = (320 * torch.randn(4, vocab_size, device=triton_device)).round() / 64
    # Sixty-fourths stay apart, and ties stay ties, when a sum of up to 91 is subtracted.
    logits[1, : vocab_size - 3] = -math.inf
    logits[2, 7] = 90.0
    tokens = torch.tensor([3, vocab_size - 1, 8, vocab_size - 2], device=triton_device)

    actual = ops.gather_logprobs(logits, tokens, num_top=3)

    expected = row_ops.gather_logprobs(logits, tokens, num_top=3)
    for ours, theirs in zip(actual, expected, strict=True):
        assert_equal(ours, theirs)


def test_gather_logprobs_of_a_row_with_a_nan_is_nan(triton_device: str) -> None:
    logits = torch.randn(2, 40, device=triton_device)
    logits[1, 5] = math.nan
    tokens = torch.tensor([0, 9], device=triton_device)
    found = ops.gather_logprobs(logits, tokens, num_top=1)
    assert found.logprobs.isnan().tolist() == [False, True]


def test_mixed_types_are_refused_by_name(triton_device: str) -> None:
    x = torch.zeros(2, 8, device=triton_device)
    with pytest.raises(ValueError, match=r"rms_norm: tensors are torch.bfloat16, torch.float32"):
        ops.rms_norm(x, torch.zeros(8, dtype=torch.bfloat16, device=triton_device), eps=1e-5)


def test_a_check_formats_its_message_only_where_it_fails() -> None:
    pytest.importorskip("triton")
    from signalbox_kernels.triton.launch import check, next_power_of_2

    class Unprintable:
        def __format__(self, spec: str) -> str:
            raise AssertionError("formatted")

    check(True, "{}", Unprintable())
    with pytest.raises(ValueError, match=r"^x is \(2, 3\), not 4$"):
        check(False, "x is {}, not {}", torch.Size([2, 3]), 4)
    assert [next_power_of_2(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


def test_an_implementation_takes_what_its_reference_takes(triton_device: str) -> None:
    """An op passes its arguments on as they are, so that defaults are the implementation's."""
    for (op, device), launcher in registry._implementations.items():
        if device == triton_device:
            taken, expected = (signature(one).parameters for one in (launcher, getattr(ops, op)))
            for name, parameter in expected.items():
                assert taken[name].default == parameter.default, f"{op}: {name}"

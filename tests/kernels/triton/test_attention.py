"""Triton's paged attention equals the reference, under the interpreter unless there is a GPU."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import attention, kv_cache

if TYPE_CHECKING:
    from signalbox_kernels.triton.attention.work import Sharing

pytestmark = pytest.mark.slow


class Problem(NamedTuple):
    """A mixed batch: decodes, a chunk that continues, a prompt, a sequence without tokens."""

    query: Tensor
    kv_cache: Tensor
    query_start: Tensor
    context_lens: Tensor
    block_tables: Tensor

    def args(self) -> dict[str, Tensor]:
        named = self._asdict()
        return {k: named[k] for k in ("query_start", "context_lens", "block_tables")}


def make_problem(
    device: str,
    *,
    heads: tuple[int, int] = (4, 2),
    head_size: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    query_lens: tuple[int, ...] = (1, 5, 0, 9, 1),
    context_lens: tuple[int, ...] = (33, 16, 1, 9, 90),
) -> Problem:
    torch.manual_seed(0)
    num_heads, num_kv_heads = heads
    num_blocks = [-(-length // block_size) for length in context_lens]
    pool = torch.randn(sum(num_blocks) + 1, 2, 2, num_kv_heads, block_size, head_size)
    blocks = (torch.randperm(sum(num_blocks)) + 1).split(num_blocks)
    tables = torch.zeros(len(num_blocks), max(num_blocks), dtype=torch.int32)
    for row, mine, length in zip(tables, blocks, context_lens, strict=True):
        row[: len(mine)] = mine
        if length % block_size:  # what is past a context is never read
            pool[mine[-1], :, :, :, length % block_size :] = math.nan
    pool[0] = math.nan
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    return Problem(
        torch.randn(sum(query_lens), num_heads, head_size).to(device, dtype),
        pool.to(device, dtype)[:, 1].transpose(2, 3),
        starts.to(device),
        torch.tensor(context_lens).to(device),
        tables.to(device),
    )


def assert_matches(
    problem: Problem,
    *,
    is_causal: bool = True,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    **how: Any,
) -> None:
    """Args: how: further arguments of Triton's `paged_attention`."""
    from signalbox_kernels.triton.attention.paged_attention import paged_attention

    rules: dict[str, Any] = {
        "is_causal": is_causal,
        "sliding_window": sliding_window,
        "soft_cap": soft_cap,
    }
    scale = problem.query.shape[2] ** -0.5
    expected = attention.paged_attention(
        problem.query, problem.kv_cache, **problem.args(), scale=scale, **rules
    )
    actual = paged_attention(
        problem.query,
        problem.kv_cache,
        **problem.args(),
        scale=scale,
        **rules,
        **how,
    )
    tolerance = 2e-5 if expected.dtype is torch.float32 else 2e-2
    assert expected.isfinite().all()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("head_size", [8, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_head_sizes(triton_device: str, head_size: int, dtype: torch.dtype) -> None:
    assert_matches(make_problem(triton_device, head_size=head_size, dtype=dtype))


@pytest.mark.parametrize("heads", [(2, 2), (9, 3), (7, 1), (20, 1)])
def test_heads_of_a_group_share_keys(triton_device: str, heads: tuple[int, int]) -> None:
    assert_matches(make_problem(triton_device, heads=heads))


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("window", [1, 20, 64])
@pytest.mark.parametrize("spare", [0, 4])
def test_sliding_windows(triton_device: str, block_size: int, window: int, spare: int) -> None:
    problem = make_problem(triton_device, block_size=block_size)
    assert_matches(problem, sliding_window=window, sharing=share(spare=spare))


@pytest.mark.parametrize("window", [None, 1, 20, 64])
@pytest.mark.parametrize("spare", [0, 5, 40])
def test_whole_sequences_see_both_ways(triton_device: str, window: int | None, spare: int) -> None:
    """Of several tiles, and of one; the last keys of a tile are in no block that is read."""
    lengths = (1, 70, 0, 9, 150)
    problem = make_problem(triton_device, query_lens=lengths, context_lens=(1, 70, 1, 9, 150))
    assert_matches(problem, is_causal=False, sliding_window=window, sharing=share(spare=spare))


def test_scores_are_capped(triton_device: str) -> None:
    problem = make_problem(triton_device)
    problem.query.mul_(30.0)
    assert_matches(problem, soft_cap=2.0)


def share(*, spare: int, least_keys: int = 32) -> "Sharing":
    from signalbox_kernels.triton.attention.work import Sharing

    return Sharing(spare, least_keys)


@pytest.mark.parametrize("spare", [2, 16])
@pytest.mark.parametrize("joins_inside", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_programs_share_the_keys_of_long_contexts(
    triton_device: str, spare: int, joins_inside: bool, dtype: torch.dtype
) -> None:
    problem = make_problem(
        triton_device, dtype=dtype, query_lens=(1, 1, 3), context_lens=(400, 3, 257)
    )
    assert_matches(problem, sharing=share(spare=spare), joins_inside=joins_inside)


@pytest.mark.parametrize(
    ("query_lens", "rules"),
    [((1, 1, 1), {}), ((40, 1, 70), {"sliding_window": 100, "soft_cap": 3.0})],
)
def test_whoever_joins_shares_gives_the_same_bits(
    triton_device: str, query_lens: tuple[int, ...], rules: dict[str, Any]
) -> None:
    from signalbox_kernels.triton.attention import paged_attention, paged_kernel

    problem = make_problem(triton_device, query_lens=query_lens, context_lens=(400, 3, 257))
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
    work = paged_attention.plan_attention(
        problem.query_start,
        problem.context_lens,
        num_tokens=sum(query_lens),
        most_queries=max(query_lens),
        sliding_window=rules.get("sliding_window"),
        sharing=share(spare=40),
        **sizes,
    )
    assert work.items[:, -1].max() > 1

    def attend(joins_inside: bool) -> Tensor:
        return paged_kernel.attend(
            problem.query,
            problem.kv_cache,
            work,
            block_tables=problem.block_tables,
            scale=0.125,
            soft_cap=rules.get("soft_cap"),
            joins_inside=joins_inside,
        )

    expected = attend(joins_inside=False)
    for _ in range(2):  # as layers do, which share the counts of arrivals
        assert torch.equal(attend(joins_inside=True), expected)
        assert not work.arrived.any()


@pytest.mark.parametrize(
    ("num_tokens", "num_seqs", "most_queries", "is_prefill"),
    [
        (256, 256, 1, False),
        (259, 256, 4, False),  # whose rows fit one tile of a decode
        (767, 256, 512, True),
        (256, 256, 256, True),  # a graph with room for as many sequences as tokens
    ],
)
def test_prompts_beside_decodes_take_the_tile_of_prefills(
    triton_device: str, num_tokens: int, num_seqs: int, most_queries: int, is_prefill: bool
) -> None:
    """That of a decode would read the keys of a prompt once for every few queries."""
    from signalbox_kernels.triton.attention.paged_attention import plan_attention

    sizes = {"num_heads": 4, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
    work = plan_attention(
        torch.zeros(num_seqs + 1, dtype=torch.int64, device=triton_device),
        torch.zeros(num_seqs, dtype=torch.int64, device=triton_device),
        num_tokens=num_tokens,
        most_queries=most_queries,
        **sizes,
    )
    assert (work.tile.rows > 16) is is_prefill


def test_prompts_fill_tiles_of_many_rows(triton_device: str) -> None:
    lens = (70, 33)
    assert_matches(
        make_problem(triton_device, heads=(6, 2), query_lens=lens, context_lens=(70, 100))
    )


def test_op_dispatches_with_window_and_cap(triton_device: str) -> None:
    problem = make_problem(triton_device)
    rules = {"scale": 0.2, "sliding_window": 9, "soft_cap": 5.0}
    actual = ops.paged_attention(problem.query, problem.kv_cache, **problem.args(), **rules)
    expected = attention.paged_attention(problem.query, problem.kv_cache, **problem.args(), **rules)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # of NumPy, which interprets
@pytest.mark.parametrize("spare", [0, 9])
def test_a_nan_stays_in_its_sequence(triton_device: str, spare: int) -> None:
    from signalbox_kernels.triton.attention.paged_attention import paged_attention

    problem = make_problem(triton_device, context_lens=(33, 160, 1, 9, 90))
    problem.query[3] = math.nan

    out = paged_attention(
        problem.query,
        problem.kv_cache,
        **problem.args(),
        scale=0.1,
        sharing=share(spare=spare),
    )

    assert out.isnan().flatten(1).any(dim=1).nonzero().flatten().tolist() == [3]


def test_blocks_past_two_to_the_31_elements_are_written_and_read(triton_device: str) -> None:
    """The pool takes 4 GiB of addresses, of which hardly any page is ever touched."""
    head_size, block_size, num_kv_heads = 64, 16, 2
    elements = 2 * num_kv_heads * block_size * head_size
    num_blocks = (1 << 31) // elements + 4
    pool = torch.empty(num_blocks, elements, dtype=torch.bfloat16, device=triton_device)
    cache = pool.view(-1, 2, num_kv_heads, block_size, head_size).transpose(2, 3)
    tables = torch.tensor([[num_blocks - 1, num_blocks - 3]], dtype=torch.int32)
    near = torch.zeros(2, elements, dtype=torch.bfloat16, device=triton_device)
    expected_cache = near.view(-1, 2, num_kv_heads, block_size, head_size).transpose(2, 3)
    generator = torch.Generator().manual_seed(0)
    key_value = torch.randn(20, 2, num_kv_heads, head_size, generator=generator).bfloat16()
    query = torch.randn(20, 4, head_size, generator=generator).bfloat16().to(triton_device)
    key, value = key_value.to(triton_device).unbind(dim=1)
    positions = torch.arange(20)
    slots = tables[0, positions // block_size].long() * block_size + positions % block_size
    args = {
        "query_start": torch.tensor([0, 20], device=triton_device),
        "context_lens": torch.tensor([20], device=triton_device),
        "scale": 0.125,
    }

    ops.reshape_and_cache(key, value, cache, slots.to(triton_device))
    actual = ops.paged_attention(query, cache, block_tables=tables.to(triton_device), **args)

    kv_cache.reshape_and_cache(key, value, expected_cache, positions.to(triton_device))
    in_order = torch.tensor([[0, 1]], dtype=torch.int32, device=triton_device)
    expected = attention.paged_attention(query, expected_cache, block_tables=in_order, **args)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)

    cos, signed_sin = torch.ones(20, 1, head_size), torch.zeros(20, 1, head_size)
    angles = [angle.bfloat16().to(triton_device) for angle in (cos, signed_sin)]
    twice = 2 * key_value.to(triton_device)
    ops.rotary_and_cache(query.clone(), twice, *angles, cache, slots.to(triton_device))
    assert torch.equal(cache[num_blocks - 1], 2 * expected_cache[0])


def test_heads_that_do_not_divide_are_refused(triton_device: str) -> None:
    problem = make_problem(triton_device, heads=(4, 3))
    with pytest.raises(ValueError, match="paged_attention: 4 heads on 3; groups must be whole"):
        ops.paged_attention(problem.query, problem.kv_cache, **problem.args(), scale=1.0)

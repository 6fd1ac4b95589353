"""How Triton's attention divides a step among programs, on the device, by lengths."""

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import signalbox_kernels.ops  # noqa: F401  # ops that `triton_device` registers kernels for
from tests.kernels.triton import attention_work
from tests.kernels.triton.attention_work import Item, divide

LENGTHS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 3000)), min_size=1, max_size=12
).map(lambda pairs: [(num_new, num_new + before or 1) for num_new, before in pairs])


def plan(
    device: str,
    lengths: list[tuple[int, int]],
    *,
    spare: int,
    is_causal: bool = True,
    window: int | None = None,
    num_kv_heads: int = 2,
) -> list[Item]:
    """Returns all items of a launch, with tiles of four queries."""
    from signalbox_kernels.triton.attention.tiles import Tile
    from signalbox_kernels.triton.attention.work import Sharing, plan_work

    new = torch.tensor([0, *(num_new for num_new, _ in lengths)])
    work = plan_work(
        new.cumsum(0).to(device),
        torch.tensor([context for _, context in lengths]).to(device),
        num_tokens=int(new.sum()),
        num_kv_heads=num_kv_heads,
        group=4,
        padded_size=16,
        tile=Tile(rows=16, keys=64, num_warps=4, num_stages=3),
        sharing=Sharing(spare),
        is_causal=is_causal,
        window=window,
    )
    assert not work.arrived.any()
    items = [Item(*fields) for fields in work.items.tolist()]
    num_shared = sum(item.shares > 1 for item in items)
    assert all(item.shares > 1 for item in items[:num_shared])
    assert num_shared * num_kv_heads <= len(work.arrived) == len(work.shares[0])
    return items


def assert_follows_the_rule(
    device: str, lengths: list[tuple[int, int]], *, spare: int, **rule: Any
) -> None:
    found = plan(device, lengths, spare=spare, **rule)
    expected = divide(lengths, spare=spare, **rule)
    assert found[: len(expected)] == expected
    assert all(item.queries == 0 and item.shares == 1 for item in found[len(expected) :])


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.parametrize("is_causal", [True, False])
def test_the_device_divides_work_as_the_rule_says(
    triton_device: str, window: int | None, is_causal: bool
) -> None:
    rng = random.Random(0)
    for spare in (0, 1, 7, 33) * 3:
        lengths = list[tuple[int, int]]()
        for _ in range(rng.randrange(1, 13)):
            num_new = rng.choice((0, 1, 1, rng.randrange(40)))
            lengths.append((num_new, num_new + rng.randrange(3000) or 1))
        assert_follows_the_rule(
            triton_device, lengths, spare=spare, is_causal=is_causal, window=window
        )


@pytest.mark.slow
def test_more_sequences_than_a_program_looks_at_together(triton_device: str) -> None:
    lengths = [(1, 100)] * 300 + [(1, 50000)] + [(1, 20)] * 300 + [(9, 40000)]
    assert_follows_the_rule(triton_device, lengths, spare=33)


@given(
    lengths=LENGTHS,
    spare=st.integers(1, 40),
    is_causal=st.booleans(),
    window=st.sampled_from([None, 1, 100]),
)
def test_each_key_is_one_programs(
    lengths: list[tuple[int, int]], spare: int, is_causal: bool, window: int | None
) -> None:
    whole = divide(lengths, spare=0, is_causal=is_causal, window=window)
    items = divide(lengths, spare=spare, is_causal=is_causal, window=window)
    assert len(items) <= len(whole) + spare
    assert sum(item.shares > 1 for item in items) <= 2 * spare
    assert keys_of(items) == keys_of(whole)


def keys_of(items: list[Item]) -> list[tuple[int, int]]:
    """Returns pairs of a tile's first token and a key tile, of all programs."""
    return sorted((item.first_token, key) for item in items for key in range(item.begin, item.end))


@given(contexts=st.lists(st.integers(1, 100_000), min_size=1), spare=st.integers(1, 40))
def test_no_program_of_a_decode_has_more_than_an_even_part_of_the_work(
    contexts: list[int], spare: int
) -> None:
    sizes = [item.end - item.begin for item in divide([(1, c) for c in contexts], spare=spare)]
    assert min(sizes) > 0
    assert max(sizes) <= max(2, -(-sum(sizes) // spare))


def test_a_long_context_among_short_ones_takes_an_even_share_of_the_time() -> None:
    lengths = attention_work.STEPS["255 of 512, 1 of 128k"]
    counts = attention_work.by_lengths(lengths)
    assert counts.longest <= counts.rounds
    assert attention_work.by_shapes(lengths, longest=1 << 17).longest > 10 * counts.rounds


def test_equal_decodes_leave_no_tile_without_work() -> None:
    lengths = attention_work.STEPS["decode of 256, context 512"]
    spare = 33 * 8
    assert attention_work.by_lengths(lengths) == (256 * 8 + spare, spare, 8, 8 * 256 * 8 / 264)

"""Requests without a seed get one that a router of the same seed gives again."""

from itertools import permutations

import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.params import request_seeds
from signalbox_router.params.request_seeds import RequestSeeds
from tests.router.stack import make_stack, saying

PROMPTS = [[1, 2, 3], [4], [1, 2, 3], [1, 2, 3]]


def drawn(seed: int, prompts: list[list[int]]) -> list[int]:
    seeds = RequestSeeds(seed)
    return [seeds.next(prompt) for prompt in prompts]


def test_the_same_prompts_get_the_same_seeds_in_any_order() -> None:
    expected = sorted(drawn(7, PROMPTS))
    assert len(set(expected)) == len(PROMPTS)
    assert all(0 <= seed < 1 << 64 for seed in expected)
    for order in permutations(PROMPTS):
        assert sorted(drawn(7, list(order))) == expected
    assert not set(drawn(8, PROMPTS)) & set(expected)


def test_prompts_that_are_seldom_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_seeds, "MAX_PROMPTS", 2)
    seeds = RequestSeeds(0)
    first = seeds.next([1])
    assert seeds.next([1]) != first
    seeds.next([2])
    seeds.next([3])
    assert seeds.next([1]) == first


async def test_a_router_with_a_seed_repeats_itself_and_a_requests_own_seed_wins() -> None:
    async def seeds_of(seed: int | None) -> list[int]:
        async with make_stack(saying("!"), seed=seed) as stack:
            for params in (pb.SamplingParams(), pb.SamplingParams(), pb.SamplingParams(seed=5)):
                await stack.generate(text="hello", sampling_params=params)
            return [added.sampling_params.seed for added in stack.scheduler.added]

    first, again, other = await seeds_of(1), await seeds_of(1), await seeds_of(2)
    assert first == again
    assert first[2] == other[2] == 5
    assert len({*first, *other}) == 5
    unseeded = await seeds_of(None)
    assert not {*unseeded[:2]} & {*first, *other}

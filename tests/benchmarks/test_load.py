"""The load generator counts what came, and does not trust servers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from benchmarks.harness.closed_loop import WrongTokenCount, drive
from benchmarks.harness.prompts import random_prompts


async def pairs(token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
    """A server that sends an empty message, and then two tokens at a time."""
    yield 0
    for _ in range(max_tokens // 2):
        await asyncio.sleep(0)
        yield 2


async def test_messages_of_several_tokens_are_counted_and_timed_by_token() -> None:
    measured = await drive(pairs, [[1]] * 5, max_tokens=6, concurrency=2)
    assert measured.num_tokens == 30
    assert len(measured.first_token_s) == 5
    assert len(measured.between_tokens_s) == 5 * 4  # the first message's tokens came at once


async def test_an_answer_that_is_too_short_is_an_error() -> None:
    with pytest.raises(WrongTokenCount, match="6 tokens came where 7"):
        await drive(pairs, [[1]], max_tokens=7, concurrency=1)


def test_prompts_are_the_same_for_a_seed_and_length_and_differ_for_others() -> None:
    def first(seed: int, num_tokens: int = 16) -> list[int]:
        return next(random_prompts(vocab_size=1000, num_tokens=num_tokens, seed=seed))

    assert first(1) == first(1) != first(2)
    assert first(1) != first(1, num_tokens=32)[:16]

"""The benchmarks of memory, against servers that are none: what they ask, count and print."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from benchmarks.comparison.turns import in_turns, table
from benchmarks.memory import long_prompts, memory_pressure
from benchmarks.peers.process import FoundInCache, PeerUnavailable
from signalbox.bench.measurements import Measured


class Echo:
    """Brings each token a millisecond after the one before, a first one later for a long prompt."""

    def __init__(self, name: str = "echo", *, fails: bool = False) -> None:
        self.name = name
        self.prompts: list[list[int]] = []
        self.calls: list[str] = []
        self._fails = fails

    async def start(self) -> None:
        self.calls.append("start")
        if self._fails:
            raise PeerUnavailable("not installed")

    def rest(self) -> None:
        self.calls.append("rest")

    def stop(self) -> None:
        self.calls.append("stop")

    async def stream(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
        self.prompts.append(token_ids)
        await asyncio.sleep(len(token_ids) / 1e4)
        for _ in range(max_tokens):
            await asyncio.sleep(0.001)
            yield 1


async def test_memory_pressure_sends_prompts_of_which_none_is_like_another() -> None:
    server = Echo()
    measured = await memory_pressure.measure(
        server, concurrency=4, num_requests=6, prompt_tokens=32, max_tokens=5
    )
    assert measured.num_tokens == 30
    assert len(measured.first_token_s) == 6
    assert len({tuple(prompt[:16]) for prompt in server.prompts}) == 8  # two of the warm-up


async def test_what_is_found_in_a_prefix_cache_ends_a_measurement() -> None:
    class Finding(Echo):
        async def stream(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
            self.num_found = 16
            yield max_tokens

    with pytest.raises(FoundInCache, match="16 prompt tokens"):
        await memory_pressure.measure(
            Finding(), concurrency=1, num_requests=1, prompt_tokens=32, max_tokens=2
        )


async def test_long_prompts_counts_what_the_streams_get_meanwhile() -> None:
    server = Echo()
    measured = await long_prompts.measure(
        server, num_streams=3, stream_tokens=50, num_long=2, long_tokens=1000
    )
    assert sum(len(prompt) == 1000 for prompt in server.prompts) == 2
    assert len(measured.first_token_s) == 2
    assert min(measured.first_token_s) > 0.1
    assert measured.num_tokens == len(measured.between_tokens_s) > 0
    assert measured.duration_s > 0.2


async def test_a_stream_that_fails_ends_the_measurement() -> None:
    class Broken(Echo):
        async def stream(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
            raise ConnectionError("gone")
            yield 0

    with pytest.raises(ConnectionError):
        await long_prompts.measure(
            Broken(), num_streams=2, stream_tokens=5, num_long=1, long_tokens=10
        )


async def test_servers_take_turns_and_one_that_fails_is_out() -> None:
    servers = [Echo("a"), Echo("b", fails=True), Echo("c")]
    order: list[str] = []

    async def measure(server: Echo, round_number: int) -> Measured:
        order.append(f"{server.name}{round_number}")
        rate = 10 if server.name == "a" else 5
        return Measured(duration_s=1.0, num_tokens=rate, first_token_s=[0.1], between_tokens_s=[])

    results = await in_turns(servers, measure, rounds=2)
    assert order == ["a0", "c0", "c1", "a1"]
    assert [server.calls[-1] for server in servers] == ["stop"] * 3
    lines = table("setting", results).splitlines()
    assert [line.split(" | ")[:3] for line in lines[2:]] == [
        ["| a", "10.0", "1.00"],
        ["| c", "5.0", "0.50"],
    ]

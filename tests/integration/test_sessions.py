"""Turns of a session find their prefix behind a router of two schedulers of simulated workers."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc, stats_pb2
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from tests.integration.stack import (
    assert_idle,
    running_router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.waiting import eventually

BLOCK = 16
PROMPT = [*range(10, 10 + 8 * BLOCK)]


class Client:
    """A client of the router that takes turns."""

    def __init__(self, stub: Any, session: str) -> None:
        self._stub = stub
        self._session = session

    def _call(self, prompt: list[int], max_tokens: int) -> Any:
        params = pb.SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0)
        return self._stub.Generate(
            pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=prompt), sampling_params=params, session=self._session
            )
        )

    async def turn(self, prompt: list[int]) -> tuple[list[int], int]:
        """Returns the prompt with its answer, and how many tokens of the prompt were found."""
        answers = [one async for one in self._call(prompt, 8)]
        told = [token for one in answers for out in one.outputs for token in out.token_ids]
        return [*prompt, *told], answers[-1].usage.cached_tokens

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Another request of the session runs meanwhile."""
        call = self._call([7, 8, 9], 3000)
        await call.read()
        try:
            yield
        finally:
            call.cancel()


@pytest.mark.parametrize("session", ["an agent", ""])
async def test_only_turns_of_a_session_find_their_prefix(session: str) -> None:
    worker = simulated(step_ns=2_000_000, block_size=BLOCK)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as one,
        running_scheduler(SchedulerConfig(port=0)) as two,
        running_worker(one.address, worker),
        running_worker(two.address, worker),
        running_router(one.address, two.address) as router,
        open_channel(router.server.address) as channel,
    ):
        await eventually(lambda: router.schedulers.num_serving == 2)
        client = Client(inference_pb2_grpc.InferenceServiceStub(channel), session)
        history, found = await client.turn(PROMPT)
        assert found == 0
        async with client.held():
            for number in range(3):
                asked = [*history, number]
                whole = (len(asked) - 1) // BLOCK * BLOCK
                history, found = await client.turn(asked)
                if session or number:
                    assert found == whole
                else:
                    assert found == 0, "the other scheduler is less loaded"
        await eventually(lambda: not router.live.num_live and not router.schedulers.num_live)
        known = [await sessions_of(scheduler.address) for scheduler in (one, two)]
        assert sorted(len(listed) for listed in known) == ([0, 1] if session else [0, 0])
        for summary in (summary for listed in known for summary in listed):
            assert (summary.num_turns, summary.total.num_device_tokens > 0) == (4, True)
        await assert_idle(one)
        await assert_idle(two)


async def sessions_of(address: str) -> list[stats_pb2.SessionSummary]:
    async with open_channel(address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        stats = await stub.GetStats(stats_pb2.GetStatsRequest(max_sessions=5))
        return list(stats.sessions)

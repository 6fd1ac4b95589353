"""Without API keys clients share the workers by address, and cached blocks all the same."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2

from protos.scheduler.v1 import explain_pb2, state_pb2, stats_pb2
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.requests.sequence_group import SequenceGroup
from tests.integration.stack import (
    RunningScheduler,
    router,
    running_router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.waiting import EVENT_S, eventually

FLOOD, OTHER = "127.0.0.2", "127.0.0.3"
PROMPT = list(range(1, 41))


@dataclass(slots=True)
class Stack:
    scheduler: RunningScheduler
    http_address: str

    @contextlib.asynccontextmanager
    async def client(self, address: str) -> AsyncIterator[httpx2.AsyncClient]:
        """A client whose connections come from an address."""
        transport = httpx2.AsyncHTTPTransport(local_address=address)
        url = f"http://{self.http_address}"
        async with httpx2.AsyncClient(base_url=url, transport=transport, timeout=EVENT_S) as client:
            yield client

    async def waiting(self, count: int) -> list[SequenceGroup]:
        """Returns the groups that wait once there are so many, in order of arrival."""
        cluster = self.scheduler.cluster
        await eventually(lambda: len(cluster.admission) == count)
        return sorted(cluster.admission, key=lambda group: group.times.arrival)


@contextlib.asynccontextmanager
async def make_stack() -> AsyncIterator[Stack]:
    """A fair scheduler whose worker computes one sequence at a time."""
    config = SchedulerConfig(port=0, scheduling_policy="fair")
    worker = simulated(max_num_seqs=1, block_size=8, step_ns=2_000_000)
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, worker),
        running_router(scheduler.address, http_port=0) as service,
    ):
        assert service.http is not None
        yield Stack(scheduler, service.http.address)
        await eventually(lambda: not len(scheduler.cluster.requests))
        scheduler.cluster.check()


async def complete(client: httpx2.AsyncClient, *, max_tokens: int = 2) -> None:
    body = {"prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text


async def test_an_address_that_floods_delays_another_by_one_and_shares_its_cached_blocks() -> None:
    async with make_stack() as stack, stack.client(FLOOD) as flood, stack.client(OTHER) as other:
        held = asyncio.create_task(complete(flood, max_tokens=4000))
        await eventually(
            lambda: any(one.scheduler.running for one in stack.scheduler.cluster.step_loops)
        )
        calls = [asyncio.create_task(complete(flood)) for _ in range(4)]
        await stack.waiting(4)
        calls.append(asyncio.create_task(complete(other)))
        *flooding, last = await stack.waiting(5)
        await check_insight_names_no_client(stack)
        held.cancel()
        await asyncio.gather(*calls)
        starts = [group.times.first_scheduled or 0.0 for group in flooding]
        assert sum(start < (last.times.first_scheduled or 0.0) for start in starts) <= 1
        assert last.request.tenant == flooding[0].request.tenant == ""
        assert (last.payer, flooding[0].payer) == (OTHER, FLOOD)
        assert last.num_cached_tokens > 0


async def check_insight_names_no_client(stack: Stack) -> None:
    async with router(stack.scheduler.address) as client:
        request = state_pb2.DumpStateRequest(include_token_ids=True)
        shown = [str(part) async for part in client.stub.DumpState(request)]
        shown.append(str(await client.stub.GetStats(stats_pb2.GetStatsRequest())))
        for group in stack.scheduler.cluster.admission:
            asked = explain_pb2.ExplainRequest(request_id=group.request_id)
            shown.append(str(await client.stub.Explain(asked)))
    assert not [one for one in shown if FLOOD in one or OTHER in one]

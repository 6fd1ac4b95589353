"""Hosts whose packets are dropped: the others go on, and what was cut off stops, and comes back."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from benchmarks.failover import Streams, fault, metrics, until
from benchmarks.harness.hosts import Host
from benchmarks.harness.model_pool import ModelPool, model_pool
from tests.chaos.services import until_free
from tests.ports import free_port
from tests.waiting import EVENT_S

pytestmark = [pytest.mark.system]


@pytest.fixture
async def pool(three: list[Host]) -> AsyncIterator[ModelPool]:
    """Its scheduler has the first host."""
    async with model_pool(None, "--worker-wait", "300", host=three[0]) as made:
        yield made


def make_streams(pool: ModelPool) -> Streams:
    return Streams(pool, num_streams=4, context=512)


async def until_joined(pool: ModelPool, number: int) -> None:
    async with asyncio.timeout(EVENT_S):
        while len(await pool.workers()) != number:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.02)


async def test_a_worker_that_is_cut_off_is_lost_stops_and_joins_again(
    pool: ModelPool, three: list[Host]
) -> None:
    ports = [free_port(), free_port()]
    workers = [
        await pool.join("--metrics-port", str(port), core=core, host=three[1 + core])
        for core, port in enumerate(ports)
    ]
    streams = make_streams(pool)
    await streams.warm_up()
    await streams.ask()
    await streams.until_begun()
    three[1].cut_off()
    await until_joined(pool, 1)
    await until(lambda: not has_lease(metrics(workers[0], ports[0])))
    await streams.longest_gap_s(since=0.0)
    three[1].connect()
    await until_joined(pool, 2)
    await until_free(pool.scheduler_address)


def has_lease(shown: str) -> bool:
    (line,) = [one for one in shown.splitlines() if one.startswith("signalbox_worker_lease{")]
    return line.endswith(" 1")


async def test_a_host_that_is_cut_off_for_a_moment_costs_no_token(
    pool: ModelPool, three: list[Host]
) -> None:
    await fault(pool, make_streams(pool), "paused", 1.0, three[1:])
    three[1].connect()


async def until_unserved(pool: ModelPool) -> None:
    """Waits until the router has lost its scheduler."""
    async with asyncio.timeout(EVENT_S):
        while await pool.is_serving():  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.02)


async def test_a_router_that_is_cut_off_from_its_scheduler_goes_on_when_the_link_is_back(
    pool: ModelPool, three: list[Host]
) -> None:
    """All workers are lost with the scheduler, and join again."""
    for core in range(2):
        await pool.join(core=core, host=three[1 + core])
    streams = make_streams(pool)
    await streams.warm_up()
    await streams.ask()
    await streams.until_begun()
    three[0].cut_off()
    await until_unserved(pool)
    three[0].connect()
    await streams.longest_gap_s(since=0.0)
    await until_joined(pool, 2)
    await until_free(pool.scheduler_address)

"""Schedulers that die under load: every stream goes on, and says what it would have said.

Workers compute drafts; what the requests get when nothing happens is computed without.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_router.main import Router
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.transfers.migration_rounds import MigrationRounds
from signalbox_worker.config import SpeculationConfig
from tests.chaos.fault_proxy import FaultProxy, fault_proxy
from tests.gpu_worker.foresight import Foresight
from tests.gpu_worker.kv.peers.test_reading import num_moves
from tests.integration.stack import (
    RunningScheduler,
    assert_idle,
    restarted,
    running_router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.integration.test_stack import Answer, ask, decode, make_request
from tests.ports import free_port
from tests.simulated_model import expected_tokens
from tests.waiting import EVENT_S, eventually

NUM_TOKENS = 60
NUM_REQUESTS = 24
SLOW = simulated(step_ns=12_000_000, speculation=SpeculationConfig(num_tokens=2))


def prompt_of(number: int) -> list[int]:
    return [number + 1] * (3 + number)


def request_of(number: int) -> pb.GenerateRequest:
    """Greedy or seeded, with one or three branches, some ending early, or a search."""
    params: dict[str, object] = {"max_tokens": NUM_TOKENS}
    if number % 4 == 3:
        params |= {"n": 3}
    if number % 2:
        params |= {"temperature": 1.0, "seed": number}
    if number % 6 == 1:
        params |= {"logprobs": 2}
    if number % 6 == 2:
        params |= {"speculation": False}
    if number % 6 == 4:
        params |= {"beam_search": pb.BeamSearch(width=3)}
    if number % 6 == 5:
        text = decode(tokens_of(number, branch=0)[: NUM_TOKENS // 3])
        params |= {"stop": [text[-6:]]}
    return make_request(prompt_of(number), **params)


def tokens_of(number: int, *, branch: int) -> list[int]:
    return expected_tokens(
        prompt_of(number),
        num_tokens=NUM_TOKENS,
        temperature=float(number % 2),
        seed=number if number % 2 else 0,
        branch=branch,
    )


def assert_undisturbed(answers: list[Answer], alone: list[Answer]) -> None:
    for number, (answer, expected) in enumerate(zip(answers, alone, strict=True)):
        assert answer.token_ids == expected.token_ids, number
        assert answer.text == expected.text, number
        assert answer.logprobs == expected.logprobs, number
        assert answer.usage is not None
        reasons = {index: finish.reason for index, finish in answer.finish.items()}
        assert reasons == {index: finish.reason for index, finish in expected.finish.items()}
        if "beam_search" not in str(request_of(number)):
            whole = tokens_of(number, branch=0)
            assert answer.token_ids[0] == whole[: len(answer.token_ids[0])]


def assert_drafted(answers: list[Answer]) -> None:
    """Drafts were computed, and some of them refused."""
    uses = [answer.usage.speculation for answer in answers if answer.usage is not None]
    assert 0 < sum(use.num_accepted for use in uses) < sum(use.num_drafts for use in uses)


@contextlib.asynccontextmanager
async def client_of(router: Router) -> AsyncIterator[pb_grpc.InferenceServiceStub]:
    async with open_channel(router.server.address) as channel:
        yield pb_grpc.InferenceServiceStub(channel)


async def ask_all(stub: pb_grpc.InferenceServiceStub) -> list[Answer]:
    return await asyncio.gather(*(ask(stub, request_of(n)) for n in range(NUM_REQUESTS)))


@pytest.fixture(scope="module")
def alone() -> list[Answer]:
    """What the requests get when nothing happens."""

    async def run() -> list[Answer]:
        async with (
            running_scheduler(SchedulerConfig(port=0)) as scheduler,
            running_worker(scheduler.address, simulated()),
            running_router(scheduler.address) as router,
            client_of(router) as stub,
        ):
            return await ask_all(stub)

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def drafts(foresight: Foresight) -> None:
    """Workers know what they will draw, as far as they draft."""
    foresight.texts += [
        [*prompt_of(number), *tokens_of(number, branch=branch)]
        for number in range(NUM_REQUESTS)
        for branch in range(3)
    ]


async def until_half_way(scheduler: RunningScheduler) -> None:
    def num_generated() -> int:
        groups = scheduler.cluster.requests.live_groups
        return sum(len(seq.output_token_ids) for group in groups for seq in group.sequences)

    await eventually(lambda: num_generated() > NUM_REQUESTS * NUM_TOKENS // 3)


async def test_requests_go_on_when_their_scheduler_is_back(alone: list[Answer]) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=free_port())) as scheduler,
        running_worker(scheduler.address, SLOW),
        running_router(scheduler.address) as router,
        client_of(router) as stub,
    ):
        asked = asyncio.create_task(ask_all(stub))
        await until_half_way(scheduler)
        async with restarted(scheduler) as once, contextlib.AsyncExitStack() as stack:
            await eventually(lambda: len(once.cluster.requests) > 0)
            twice = await stack.enter_async_context(restarted(once))
            assert_undisturbed(answers := await asked, alone)
            assert_drafted(answers)
            assert len(twice.cluster.requests.history) > 0
            assert not router.schedulers.num_live
            await assert_idle(twice)


@pytest.mark.parametrize("is_paused", [False, True])
async def test_requests_go_on_when_their_scheduler_dies_while_it_hands_them_over(
    is_paused: bool, alone: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of copies has just begun, before or after a group was paused."""
    is_copying, begin = asyncio.Event(), MigrationRounds.begin

    def begin_and_tell(*args: Any) -> bool:
        has_begun, migration = begin(*args), args[1]
        if migration.fetch is not None and migration.has_paused is is_paused:
            is_copying.set()
        return has_begun

    monkeypatch.setattr(MigrationRounds, "begin", begin_and_tell)
    make_runner = simulated(
        step_ns=3_000_000, block_size=4, num_gpu_blocks=1000, num_cpu_blocks=200
    )
    async with (
        running_scheduler(SchedulerConfig(port=free_port())) as scheduler,
        running_worker(scheduler.address, make_runner) as first,
        running_worker(scheduler.address, make_runner) as second,
        running_router(scheduler.address) as router,
        client_of(router) as stub,
    ):
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 2)
        asked = asyncio.create_task(ask_all(stub))
        await until_half_way(scheduler)
        scheduler.cluster.drain(max(loops, key=lambda loop: len(loop.scheduler.running)))
        async with asyncio.timeout(EVENT_S):
            await is_copying.wait()
        leases = [one.worker._lease for one in (first, second)]
        async with restarted(scheduler) as another:
            assert_undisturbed(await asked, alone)
            await eventually(lambda: len(another.cluster.step_loops) == 2)
            await assert_idle(another)
            for one, lease in zip((first, second), leases, strict=True):
                assert one.worker._lease not in (None, lease), "the lease has ended"
                assert not num_moves(one.worker, "export"), "nothing that it exported is pinned"


async def test_requests_go_on_at_another_scheduler(alone: list[Answer]) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as first,
        running_scheduler(SchedulerConfig(port=0)) as second,
        running_worker(first.address, SLOW),
        running_worker(second.address, SLOW),
        running_router(first.address, second.address) as router,
        client_of(router) as stub,
    ):
        await eventually(lambda: router.schedulers.num_serving == 2)
        asked = asyncio.create_task(ask_all(stub))
        await until_half_way(first)
        requests = second.cluster.requests
        num_taken = len(requests) + len(requests.history)
        assert num_taken in range(NUM_REQUESTS // 2 - 4, NUM_REQUESTS // 2 + 5)
        await first.kill()
        assert_undisturbed(answers := await asked, alone)
        assert_drafted(answers)
        assert len(second.cluster.requests.history) > NUM_REQUESTS // 2 + 4
        await assert_idle(second)


@contextlib.asynccontextmanager
async def frozen_link(
    *, heartbeat_interval_s: float
) -> AsyncIterator[tuple[RunningScheduler, FaultProxy, Router, "asyncio.Task[Answer]"]]:
    """Yields a scheduler behind a link that has stopped, and a request that it computes."""
    config = SchedulerConfig(port=0, heartbeat_interval_s=heartbeat_interval_s, lease_s=60)
    async with (
        running_scheduler(config) as scheduler,
        fault_proxy(scheduler.server.port) as link,
        running_worker(scheduler.address, SLOW),
        running_router(link.address) as router,
        client_of(router) as stub,
    ):
        asked = asyncio.create_task(ask(stub, request_of(0)))
        await eventually(lambda: len(scheduler.cluster.requests) == 1)
        link.freeze()
        yield scheduler, link, router, asked


async def test_a_link_that_stands_still_for_less_than_heartbeats_allow_loses_no_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As on a crowded machine: gRPC's own pings must not be less patient."""
    async with frozen_link(heartbeat_interval_s=5.0) as (scheduler, link, _, asked):
        await asyncio.sleep(4.0)
        link.thaw()
        assert (await asked).token_ids[0] == tokens_of(0, branch=0)
        assert len(scheduler.cluster.requests.history) == 1
    assert "lost the scheduler" not in caplog.text


async def test_a_scheduler_of_which_no_heartbeat_comes_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with frozen_link(heartbeat_interval_s=0.1) as (scheduler, link, router, asked):
        await eventually(lambda: not router.schedulers.num_serving)
        assert f"lost the scheduler at {link.address}: no heartbeat" in caplog.text
        link.thaw()
        assert (await asked).token_ids[0] == tokens_of(0, branch=0)
        await assert_idle(scheduler)


async def test_a_scheduler_that_drains_gets_nothing_new_and_finishes_what_it_has() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as first,
        running_scheduler(SchedulerConfig(port=0)) as second,
        running_worker(first.address, SLOW),
        running_worker(second.address, SLOW),
        running_router(first.address, second.address) as router,
        client_of(router) as stub,
    ):
        await eventually(lambda: router.schedulers.num_serving == 2)
        running = asyncio.create_task(ask(stub, request_of(0)))
        await eventually(lambda: len(first.cluster.requests) == 1)
        other = asyncio.create_task(ask(stub, request_of(2)))
        await eventually(lambda: len(second.cluster.requests) == 1)
        first.server.stop_serving()
        # The router may not know yet, and send some of these to the first.
        answers = await asyncio.gather(*(ask(stub, request_of(0)) for _ in range(4)))
        answers += [await running, await other]
        assert all(answer.usage is not None for answer in answers)
        assert (len(first.cluster.requests.history), len(second.cluster.requests.history)) == (1, 5)
        await eventually(lambda: router.schedulers.num_serving == 1)

"""Worker processes that die of what they compute: of anything, or of one request.

A supervisor starts each of them again. No healthy request ends by it, and each says what it says
while nothing happens.
"""

import asyncio
import contextlib
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from gpu_worker.simulated.simulated_runner import expected_tokens
from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc as pb_grpc
from rpc.transport.channel import open_channel
from scheduler_svc.requests.suspicion import MAX_LOSSES
from tests.chaos import crashing_worker
from tests.chaos.checks.history import Fault, FaultKind, Record, check
from tests.chaos.load import Load
from tests.chaos.services import ChaosStack, Service, chaos_stack
from tests.waiting import EVENT_S, eventually

NUM_CLIENTS = 12
PROMPT = [300] * 10
TOKENS = expected_tokens(PROMPT, num_tokens=60)
NUM_SAID = 20
"""Tokens that the poisonous request says before it kills its worker."""
POISON = f"{TOKENS[NUM_SAID - 1]}@{len(PROMPT) + NUM_SAID - 1}"
PAUSES = re.compile(r"worker quarantined: (\S+), it failed (\d) times .* again after (\S+) s")


def crashing(deadly: str) -> tuple[str, ...]:
    """Returns the command of a worker that dies of some input."""
    return (sys.executable, "-m", crashing_worker.__name__, deadly)


@contextlib.asynccontextmanager
async def started_again(*services: Service) -> AsyncIterator[list[int]]:
    """Starts each of them again whenever it has ended; yields the exit statuses so far."""
    statuses: list[int] = []

    async def supervise(service: Service) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                statuses.append(await service.wait())
                service.start()

    tasks = [asyncio.create_task(supervise(service)) for service in services]
    try:
        yield statuses
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def make_crashing(service: Service, deadly: str) -> None:
    """Ends a worker in order, and starts one in its place that dies of some input."""
    service.send(signal.SIGTERM)
    assert await service.wait() == 0
    service.command = crashing(deadly)
    service.start()


async def until_quarantined(stack: ChaosStack) -> list[str]:
    """Waits until workers may not join; returns their addresses."""
    async with asyncio.timeout(EVENT_S):
        while not (found := (await stack.stats()).quarantined_workers):  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.05)
    return [one.address for one in found]


@pytest.mark.timeout(600)
async def test_a_worker_process_that_dies_of_any_input_ends_no_request_and_is_quarantined(
    tmp_path: Path,
) -> None:
    async with chaos_stack(tmp_path, num_workers=2) as stack:
        load = Load(stack.address)
        await load.learn()
        broken = stack.workers[1]
        await make_crashing(broken.service, crashing_worker.ANY)
        await stack.until_whole()

        def pauses() -> list[tuple[str, ...]]:
            return PAUSES.findall(stack.scheduler.log.read_text())

        async with started_again(broken.service) as statuses:
            asking = asyncio.create_task(load.run(num_clients=NUM_CLIENTS, seed=1))
            await eventually(lambda: len(pauses()) >= 2)
            assert await until_quarantined(stack) == [broken.address]
            load.finish()
            await asking
        assert check(load.records, undisturbed=load.undisturbed, faults=()) == []
        assert pauses()[:2] == [(broken.address, "2", "1"), (broken.address, "3", "2")]
        assert len(statuses) >= 3
        assert set(statuses) == {-signal.SIGKILL}
        assert any(record.is_ok for record in load.records)
        await stack.until_free()
        ended = await stack.stop()
        del ended["worker 1"]  # which may be dead, or starting
        assert set(ended.values()) == {0}


async def ask_poison(address: str) -> Record:
    record = Record(shape="poison", began=time.monotonic())
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=len(TOKENS), ignore_eos=True),
    )
    async with open_channel(address) as channel:
        try:
            async for response in pb_grpc.InferenceServiceStub(channel).Generate(request):
                record.add(response)
            record.end(grpc.StatusCode.OK, "", time.monotonic())
        except grpc.aio.AioRpcError as error:
            record.end(error.code(), error.details() or "", time.monotonic())
    return record


@pytest.mark.timeout(600)
async def test_a_request_that_kills_any_worker_process_ends_alone_after_three(
    tmp_path: Path,
) -> None:
    async with chaos_stack(tmp_path, num_workers=2, worker_command=crashing(POISON)) as stack:
        load = Load(stack.address)
        await load.learn()
        workers = [worker.service for worker in stack.workers]
        async with started_again(*workers) as statuses:
            asking = asyncio.create_task(load.run(num_clients=NUM_CLIENTS, seed=1))
            poison = await ask_poison(stack.address)
            await stack.until_whole()
            after = await load.until_ok(since=time.monotonic())
            load.finish()
            await asking
        assert poison.code is grpc.StatusCode.INTERNAL
        assert poison.message == "3 workers were lost while they worked on the request"
        assert poison.token_ids == {0: TOKENS[:NUM_SAID]}
        assert 0 < len(statuses) <= MAX_LOSSES
        assert set(statuses) == {-signal.SIGKILL}
        # New requests may be refused while no worker serves, and may not end as the poison does.
        outage = Fault(kind=FaultKind.WORKER, name="poison", began=poison.began, ended=after)
        assert check(load.records, undisturbed=load.undisturbed, faults=[outage]) == []
        beside = [one for one in load.records if one.began < (poison.ended or 0) and one.is_ok]
        assert len(beside) > NUM_CLIENTS
        assert "worker quarantined" not in stack.scheduler.log.read_text()
        assert not (await stack.stats()).quarantined_workers
        await stack.until_free()
        assert set((await stack.stop()).values()) == {0}

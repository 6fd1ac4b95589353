"""Workers that crash on any input end no request; a request that crashes any worker ends alone.

A crash is a runner that reports its device lost: the lease ends as it does with the process, and
the worker registers again at the same address, as one does that is started again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from signalbox_protos.scheduler.v1 import explain_pb2, stats_pb2
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.requests import suspicion
from signalbox_scheduler.service.replay.replay_codec import Replay
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.runner.runner import Runner
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.servicer import WorkerServicer
from signalbox_worker.service.worker import Worker
from tests.integration import stack
from tests.integration.failures.test_faulty_worker import (
    Spoil,
    fail_all,
    leave_out_rows,
    put_unknown_sequences,
)
from tests.integration.stack import (
    Got,
    Router,
    RunningScheduler,
    count,
    router,
    running_scheduler,
    running_worker,
)
from tests.simulated_model import expected_tokens
from tests.waiting import eventually

CONFIG = SimulatedConfig(num_gpu_blocks=256, max_num_batched_tokens=48, step_ns=500_000)
POISON = 77
POISON_AT = 60
"""A token and a position at which it crashes each worker; no other request has it there."""
NUM_REQUESTS = 60
NUM_TOKENS = 12


class Poisonable(SimulatedRunner):
    """Crashes on POISON at POISON_AT."""

    def execute(self, batch: Batch) -> BatchOutput:
        if (batch.positions[batch.token_ids == POISON] == POISON_AT).any():
            raise DeviceLost("an illegal memory access")
        return super().execute(batch)


class Broken(SimulatedRunner):
    """Crashes on any input."""

    def execute(self, batch: Batch) -> BatchOutput:
        raise DeviceLost("an illegal memory access")


class BrokenOnLongSteps(SimulatedRunner):
    """Crashes on steps of more than one token, so that the check of a worker does not tell."""

    def execute(self, batch: Batch) -> BatchOutput:
        if len(batch.token_ids) > 1:
            raise DeviceLost("an illegal memory access")
        return super().execute(batch)


@pytest.fixture(autouse=True)
def _workers_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a worker whose device is lost register again, as its next process would."""
    monkeypatch.setattr(Worker, "_watch", lambda *_: None)


def make(runner: Callable[[SimulatedConfig], Runner]) -> Callable[[], Runner]:
    return lambda: runner(CONFIG)


def prompt_of(handle: int) -> list[int]:
    return [handle % 60 + 1] * (3 + handle % 40)


async def ask_healthy(client: Router, handles: range, *, attempt: int = 0) -> None:
    """Asks; an attempt above 0 is not refused while no worker serves."""
    for handle in handles:
        await client.add(handle, prompt_of(handle), max_tokens=NUM_TOKENS, attempt=attempt)
        await asyncio.sleep(0.002)


def assert_right(handle: int, got: Got) -> None:
    assert got.end is not None
    assert (got.end.code, got.end.message) == (0, "")
    assert got.tokens == {0: expected_tokens(prompt_of(handle), num_tokens=NUM_TOKENS)}


@pytest.mark.parametrize("broken", [Broken, BrokenOnLongSteps])
async def test_a_worker_that_crashes_on_any_input_ends_no_request_and_is_quarantined(
    broken: type[SimulatedRunner],
) -> None:
    async with running_stack(SchedulerConfig(port=0), broken, SimulatedRunner) as started:
        scheduler, client = started
        address = scheduler.cluster.step_loops[0].worker_name
        records = scheduler.cluster.worker_records
        await ask_healthy(client, range(NUM_REQUESTS))
        for handle, got in enumerate(await client.ended(*range(NUM_REQUESTS))):
            assert_right(handle, got)
        await eventually(lambda: records.quarantine(address) is not None)
        stats = await client.stub.GetStats(stats_pb2.GetStatsRequest())
        assert [one.address for one in stats.quarantined_workers] == [address]
        assert count(stats.samples, "worker_failures") >= 2
        scheduler.cluster.check()


@contextlib.asynccontextmanager
async def running_stack(
    config: SchedulerConfig, *runners: type[SimulatedRunner]
) -> AsyncIterator[tuple[RunningScheduler, Router]]:
    """A scheduler, a worker of each runner, and a bare router."""
    async with contextlib.AsyncExitStack() as exits:
        scheduler = await exits.enter_async_context(running_scheduler(config))
        for number, runner in enumerate(runners, start=1):
            worker = running_worker(scheduler.address, make(runner))
            await exits.enter_async_context(worker)
            await eventually(lambda n=number: len(scheduler.cluster.step_loops) == n)  # type: ignore[misc]
        yield scheduler, await exits.enter_async_context(router(scheduler.address))


@pytest.mark.parametrize("num_workers", [1, 2, 4])
async def test_a_request_that_crashes_any_worker_ends_after_three_losses_and_quarantines_none(
    num_workers: int, caplog: pytest.LogCaptureFixture, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("recording") / "decisions"
    config = SchedulerConfig(port=0, recording_path=str(path))
    async with running_stack(config, *[Poisonable] * num_workers) as (scheduler, client):
        healthy = range(1, NUM_REQUESTS)
        await ask_healthy(client, healthy[:10], attempt=1)
        await client.add(0, [5] * POISON_AT + [POISON], max_tokens=NUM_TOKENS)
        await ask_healthy(client, healthy[10:], attempt=1)
        for handle, got in zip(healthy, await client.ended(*healthy), strict=True):
            assert_right(handle, got)
        (poisoned,) = await client.ended(0)
        assert poisoned.end is not None
        assert poisoned.end.code == 13
        assert poisoned.end.message == "3 workers died while working on the request"
        assert caplog.text.count("worker lost") == suspicion.MAX_LOSSES
        await eventually(lambda: len(scheduler.cluster.step_loops) == num_workers)
        records = scheduler.cluster.worker_records
        assert "quarantined" not in caplog.text
        assert [
            records.num_failures_of(one.worker_name) for one in scheduler.cluster.step_loops
        ] == [0] * num_workers
        events = [event.kind for event in await explained(client, "r0")]
        assert events.count(explain_pb2.EVENT_KIND_SUSPECTED) == suspicion.MAX_LOSSES
        scheduler.cluster.check()
    replay = Replay(str(path), checks=True)
    assert replay.run() is None
    assert replay.num_steps > NUM_TOKENS


async def explained(client: Router, request_id: str) -> list[explain_pb2.Event]:
    answer = await client.stub.Explain(explain_pb2.ExplainRequest(request_id=request_id))
    return list(answer.events)


@pytest.mark.parametrize("spoil", [leave_out_rows, put_unknown_sequences, fail_all])
async def test_a_worker_that_answers_nonsense_alone_ends_no_request_and_is_quarantined(
    spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    servicers: list[WorkerServicer] = []

    class Faulty(WorkerServicer):
        """The first that is made answers each step wrongly."""

        async def ExecuteModel(self, requests: object, context: object) -> AsyncIterator[object]:
            async for answer in super().ExecuteModel(requests, context):  # type: ignore[arg-type]
                if self is servicers[0]:
                    spoil(answer)
                yield answer

    def make_servicer(worker: Worker) -> WorkerServicer:
        servicers.append(Faulty(worker))
        return servicers[-1]

    monkeypatch.setattr(stack, "WorkerServicer", make_servicer)
    config = SchedulerConfig(port=0)
    async with running_stack(config, SimulatedRunner, SimulatedRunner) as (scheduler, client):
        address = scheduler.cluster.step_loops[0].worker_name
        await ask_healthy(client, range(NUM_REQUESTS))
        for handle, got in enumerate(await client.ended(*range(NUM_REQUESTS))):
            assert_right(handle, got)
        records = scheduler.cluster.worker_records
        await eventually(lambda: records.quarantine(address) is not None)

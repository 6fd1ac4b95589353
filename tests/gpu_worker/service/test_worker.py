"""Leases, the step log, and what the worker survives."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from signalbox_contract.errors import (
    Aborted,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    RpcError,
)
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.step import Step
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.lease.step_log import StepLog
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.worker import NO_EPOCH, Worker
from tests.gpu_worker.builders import make_config, make_mapping, make_new, make_step
from tests.gpu_worker.served_worker import EPOCH, PROMPT, GatedRunner, init_cache, make_worker
from tests.simulated_model import expected_tokens
from tests.waiting import eventually

FIRST = make_step(1, new=[make_new(1, PROMPT, [3, 1, 2])])


@pytest.fixture
def runner() -> GatedRunner:
    return GatedRunner()


@pytest.fixture
async def worker(runner: GatedRunner) -> Worker:
    return await make_worker(runner)


async def test_steps_are_executed_in_order_and_fed_forward(worker: Worker) -> None:
    answers = [worker.submit(FIRST)]
    answers += [worker.submit(make_step(k, running={1: 1})) for k in range(2, 6)]
    results = await asyncio.gather(*answers)
    assert [result.step_id for result in results] == [1, 2, 3, 4, 5]
    drawn = [result.token_ids.tolist()[0] for result in results]
    assert drawn == expected_tokens(PROMPT, num_tokens=5)
    assert all(result.timings.wait_ns >= 0 for result in results)


async def test_the_runner_is_made_and_called_on_one_other_thread() -> None:
    threads = set()

    class Spy(SimulatedRunner):
        def __init__(self) -> None:
            threads.add(threading.current_thread())
            super().__init__(make_config())

        def profile(self) -> WorkerCapacity:
            threads.add(threading.current_thread())
            return super().profile()

        def execute(self, batch: Batch) -> BatchOutput:
            threads.add(threading.current_thread())
            return super().execute(batch)

    worker = await Worker.load(Spy)
    worker.begin_epoch(EPOCH)
    await init_cache(worker)
    await worker.submit(FIRST)
    assert len(threads) == 1
    assert threading.current_thread() not in threads


async def test_an_answered_step_is_answered_again_and_not_executed_again(
    runner: GatedRunner, worker: Worker
) -> None:
    first = await worker.submit(FIRST)
    second = await worker.submit(make_step(2, running={1: 1}))
    assert await worker.submit(FIRST) is first
    assert await worker.submit(make_step(2, running={1: 1})) is second
    assert runner.num_executed == 2


async def test_a_resend_attaches_to_the_running_step(runner: GatedRunner, worker: Worker) -> None:
    runner.gate.clear()
    answers = [worker.submit(FIRST), worker.submit(FIRST)]
    runner.gate.set()
    results = await asyncio.gather(*answers)
    assert results[0] is results[1]
    assert runner.num_executed == 1


async def test_only_the_last_two_answers_are_kept(worker: Worker) -> None:
    await worker.submit(FIRST)
    for step_id in (2, 3):
        await worker.submit(make_step(step_id, running={1: 1}))
    for step_id in (2, 3):
        await worker.submit(make_step(step_id))
    with pytest.raises(FailedPrecondition, match="too old"):
        worker.submit(FIRST)


@pytest.mark.parametrize("step_id", [0, 3, 1 << 63])
async def test_a_gap_in_step_ids_is_refused(worker: Worker, step_id: int) -> None:
    await worker.submit(FIRST)
    with pytest.raises(FailedPrecondition):
        worker.submit(make_step(step_id, running={1: 1}))
    await worker.submit(make_step(2, running={1: 1}))


async def test_a_refused_step_counts_as_never_sent(worker: Worker) -> None:
    await worker.submit(FIRST)
    refused = worker.submit(make_step(2, running={9: 1}))
    behind = worker.submit(make_step(3, running={1: 1}))
    with pytest.raises(InvalidArgument):
        await refused
    with pytest.raises(FailedPrecondition, match="step 2 expected"):
        await behind
    result = await worker.submit(make_step(2, running={1: 1}))
    assert result.token_ids.tolist() == expected_tokens(PROMPT, num_tokens=2)[1:]


async def test_a_kernel_that_raises_fails_its_sequences_alone(
    runner: GatedRunner, worker: Worker
) -> None:
    await worker.submit(FIRST)
    runner.raises = [RuntimeError("secret of the device")]
    failed = await worker.submit(make_step(2, new=[make_new(2, [1], [9])]))
    assert [*failed.failures] == [2]
    assert "secret" not in failed.failures[2].message
    assert failed.token_ids.tolist() == []
    # Step 3 was on its way already, with the sequence that has just failed.
    result = await worker.submit(make_step(3, running={1: 1, 2: 1}))
    assert result.token_ids.tolist() == expected_tokens(PROMPT, num_tokens=2)[1:]
    assert [*result.failures] == [2]


class BrokenSwapRunner(GatedRunner):
    """Cannot swap."""

    def apply(self, sections: Step) -> int:
        raise RuntimeError("no pinned memory")


@pytest.mark.parametrize("direction", ["swap_out", "swap_in"])
async def test_a_swap_that_raises_ends_the_lease(direction: str) -> None:
    worker = await make_worker(BrokenSwapRunner())
    with pytest.raises(Internal):
        await worker.submit(make_step(1, **{direction: make_mapping({0: 0})}))
    with pytest.raises(Aborted):
        await worker.submit(make_step(1))
    await init_cache(worker)
    await worker.submit(FIRST)


async def test_a_step_with_nothing_to_compute_is_answered(
    runner: GatedRunner, worker: Worker
) -> None:
    await worker.submit(FIRST)
    result = await worker.submit(make_step(2, finished=[1]))
    assert (result.step_id, result.token_ids.tolist(), result.failures) == (2, [], {})
    assert runner.num_executed == 1


async def test_another_epoch_is_aborted(worker: Worker) -> None:
    with pytest.raises(Aborted):
        worker.submit(make_step(1, epoch=EPOCH + 1))
    with pytest.raises(Aborted):
        await init_cache(worker, epoch=EPOCH + 1)
    await worker.submit(FIRST)


async def test_a_lost_scheduler_loses_the_lease(runner: GatedRunner, worker: Worker) -> None:
    runner.gate.clear()
    running, queued = worker.submit(FIRST), worker.submit(make_step(2, running={1: 1}))
    await eventually(lambda: runner.num_begun == 1)
    worker.begin_epoch(NO_EPOCH)
    runner.gate.set()
    assert (await running).step_id == 1  # native code cannot be called back
    with pytest.raises(Aborted):
        await queued
    with pytest.raises(Aborted):
        worker.submit(make_step(3, running={1: 1}))
    worker.begin_epoch(8)
    with pytest.raises(FailedPrecondition, match="InitCacheEngine"):
        worker.submit(make_step(1, epoch=8))
    await init_cache(worker, epoch=8)
    new = make_step(1, epoch=8, new=[make_new(1, PROMPT, [0, 1])])
    assert (await worker.submit(new)).token_ids.tolist() == expected_tokens(PROMPT, num_tokens=1)


async def test_initialising_again_starts_over(worker: Worker) -> None:
    await worker.submit(FIRST)
    await init_cache(worker, num_gpu_blocks=4, num_cpu_blocks=0)
    with pytest.raises(FailedPrecondition):
        worker.submit(make_step(2, running={1: 1}))
    assert (await worker.submit(FIRST)).token_ids.tolist() == expected_tokens(PROMPT, num_tokens=1)


async def test_of_two_initialisations_at_once_the_later_holds(worker: Worker) -> None:
    outcomes = await asyncio.gather(
        init_cache(worker), init_cache(worker, num_gpu_blocks=4), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [Aborted, type(None)]
    with pytest.raises(InvalidArgument):
        await worker.submit(make_step(1, new=[make_new(1, [1], [4])]))


@pytest.mark.parametrize(
    ("pools", "error"),
    [
        ({"num_gpu_blocks": 17}, ResourceExhausted),
        ({"num_cpu_blocks": 5}, ResourceExhausted),
        ({"num_gpu_blocks": 0}, InvalidArgument),
    ],
)
async def test_pools_are_at_most_as_announced(
    worker: Worker, pools: dict[str, int], error: type[RpcError]
) -> None:
    await worker.submit(FIRST)
    with pytest.raises(error):
        await init_cache(worker, **pools)
    await worker.submit(make_step(2, running={1: 1}))  # the lease is as it was


async def test_the_event_loop_runs_while_a_step_computes(
    runner: GatedRunner, worker: Worker
) -> None:
    runner.gate.clear()
    answer = worker.submit(FIRST)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not answer.done()
    runner.gate.set()
    await answer


async def test_loading_errors_reach_the_caller() -> None:
    def make() -> SimulatedRunner:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        await Worker.load(make)


async def test_a_runner_that_cannot_be_profiled_is_closed() -> None:
    class TooLarge(SimulatedRunner):
        num_closed = 0

        def profile(self) -> WorkerCapacity:
            raise MemoryError("a step does not fit")

        def close(self, failure: str | None = None) -> None:
            assert failure == "rank 0 ends: a step does not fit"
            self.num_closed += 1

    runner = TooLarge(make_config())
    with pytest.raises(MemoryError, match="does not fit"):
        await Worker.load(lambda: runner)
    assert runner.num_closed == 1  # or its ranks would live on


async def test_the_log_forgets_a_refused_step_and_those_behind_it() -> None:
    log = StepLog()
    loop = asyncio.get_running_loop()

    def start() -> "asyncio.Future[object]":
        return loop.create_future()

    make: Callable[[], object] = start
    first, second = (log.get_or_start(k, make) for k in (1, 2))  # type: ignore[arg-type]
    first.set_exception(InvalidArgument("a", 1, "2"))
    await asyncio.sleep(0)
    again = log.get_or_start(1, make)  # type: ignore[arg-type]
    second.set_exception(FailedPrecondition("gap"))
    await asyncio.sleep(0)
    assert log.get_or_start(1, make) is again  # type: ignore[arg-type]


@pytest.mark.parametrize("traceparent", [f"00-{1:032x}-{1:016x}-01", "not a trace context"])
async def test_a_traced_step_is_executed_like_any_other(worker: Worker, traceparent: str) -> None:
    step = make_step(1, new=[make_new(1, PROMPT, [3, 1])], traceparent=traceparent)
    result = await worker.submit(step)
    assert result.token_ids.tolist() == expected_tokens(PROMPT, num_tokens=1)

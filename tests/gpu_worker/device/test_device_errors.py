"""A device that has failed for good ends its worker, and nobody's request."""

import asyncio
import signal

import pytest

from signalbox_contract.errors import FailedPrecondition, Internal
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker import main
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.device.device_errors import DeviceLost, is_device_lost
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.worker_settings import WorkerSettings
from tests.gpu_worker.builders import make_config, make_new, make_step
from tests.gpu_worker.served_worker import init_cache, make_worker
from tests.integration.stack import router, running_scheduler, running_worker, simulated
from tests.simulated_model import expected_tokens
from tests.waiting import EVENT_S, eventually

STICKY = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ..."


class Failing(SimulatedRunner):
    """Its device fails in the first step, and in every one after it."""

    def __init__(self, config: SimulatedConfig) -> None:
        super().__init__(config)
        self.num_executed = 0

    def execute(self, batch: Batch) -> BatchOutput:
        self.num_executed += 1
        raise RuntimeError(STICKY)


class CodedError(RuntimeError):
    """As torch.AcceleratorError is."""

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message)
        self.error_code = error_code


def caused_by(error: Exception) -> Exception:
    outer = Internal("a step failed half-way")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError(STICKY), True),
        (RuntimeError("Triton Error [CUDA]: device-side assert triggered"), True),
        (CodedError("CUDA error: something new", 719), True),
        (caused_by(RuntimeError(STICKY)), True),
        (caused_by(DeviceLost("gone")), True),
        (RuntimeError("CUDA error: out of memory"), False),
        (CodedError("CUDA error: invalid argument", 1), False),
        (RuntimeError("Triton Error [CUDA]: out of resource: shared memory"), False),
        (RuntimeError("illegal instruction"), False),  # of a kernel on a CPU
        (ValueError(STICKY), False),
        (MemoryError(), False),
    ],
    ids=str,
)
def test_errors_that_stay_are_told_from_those_that_pass(error: Exception, is_lost: bool) -> None:
    assert is_device_lost(error) is is_lost


async def test_a_worker_notices_at_the_first_step_and_takes_no_other_lease() -> None:
    runner = Failing(make_config())
    worker = await make_worker(runner)
    losing = asyncio.create_task(worker.until_lost())
    with pytest.raises(Internal):
        await worker.submit(make_step(1, new=[make_new(1, [5, 6], [3]), make_new(2, [7], [4])]))
    with pytest.raises(
        DeviceLost, match="memory access was encountered; the worker exits"
    ) as caught:
        await asyncio.wait_for(losing, EVENT_S)
    assert "\n" not in str(caught.value)
    assert runner.num_executed == 1  # halves would fail like the whole
    with pytest.raises(FailedPrecondition, match="the device has failed"):
        await init_cache(worker)
    worker.close()


class FailedLaunch:
    """A step that was enqueued; what became of it shows when it is waited for."""

    can_feed = True

    def wait(self) -> None:
        raise RuntimeError(STICKY)

    def samples(self) -> BatchOutput:
        raise RuntimeError(STICKY)


class FailingLater(SimulatedRunner):
    """Its device fails after a step was enqueued."""

    launches = True

    def launch(self, batch: Batch) -> FailedLaunch:
        return FailedLaunch()


async def test_a_worker_notices_it_of_steps_that_were_only_enqueued() -> None:
    worker = await make_worker(FailingLater(make_config()))
    losing = asyncio.create_task(worker.until_lost())
    with pytest.raises(Internal):
        await worker.submit(make_step(1, new=[make_new(1, [5, 6], [3])]))
    with pytest.raises(DeviceLost):
        await asyncio.wait_for(losing, EVENT_S)
    worker.close()


async def test_the_process_ends_with_an_error_and_its_requests_go_on_elsewhere() -> None:
    prompt = list(range(20))
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
    ):
        process = asyncio.create_task(
            main.run(
                lambda: Failing(SimulatedConfig(num_gpu_blocks=32)),
                WorkerSettings(simulate=True, scheduler=scheduler.address),
            )
        )
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        await client.add(1, prompt, num_sequences=2)
        async with running_worker(scheduler.address, simulated(num_gpu_blocks=32)):
            (got,) = await client.ended(1)
        with pytest.raises(DeviceLost):
            await asyncio.wait_for(process, EVENT_S)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
        assert got.end is not None
        assert got.end.code == 0
        assert got.tokens == {i: expected_tokens(prompt, num_tokens=16, branch=i) for i in range(2)}
        scheduler.cluster.check()

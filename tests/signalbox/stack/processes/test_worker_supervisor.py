"""Workers that are lost come back, whatever launches them: here none is a process."""

import asyncio

import pytest

from signalbox.stack.processes.worker_supervisor import ServiceDied
from tests.signalbox.stack.fake_workers import FakeLauncher
from tests.waiting import run_ready_tasks


async def test_a_lost_worker_is_replaced_in_its_place() -> None:
    launcher = FakeLauncher()
    await launcher.started(3)
    launcher.workers[1].lose()
    await run_ready_tasks()
    assert launcher.running == ["worker 0", "worker 1", "worker 2"]
    assert [worker.name for worker in launcher.workers][3:] == ["worker 1"]
    await launcher.stop()


async def test_pauses_grow_with_losses_of_the_last_minutes_and_of_one_place() -> None:
    launcher = FakeLauncher()
    await launcher.started(2)
    for _ in range(8):
        launcher.workers[-1].lose()
        await run_ready_tasks()
    assert launcher.pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    launcher.workers[0].lose()
    await run_ready_tasks()
    assert launcher.pauses[8:] == [1]
    launcher.now += 600
    launcher.workers[-2].lose()
    await run_ready_tasks()
    assert launcher.pauses[9:] == [1]
    assert len(launcher.running) == 2
    await launcher.stop()


async def test_a_start_that_fails_is_tried_again() -> None:
    launcher = FakeLauncher()
    await launcher.started(1)
    launcher.faults = [OSError("no process left")] * 2
    launcher.workers[0].lose()
    await run_ready_tasks()
    assert launcher.running == ["worker 0"]
    assert launcher.pauses == [1, 2, 4]
    await launcher.stop()


async def test_the_loss_of_all_workers_before_one_served_is_the_end() -> None:
    launcher = FakeLauncher()
    await launcher.started(2, serves=False)
    waiting = asyncio.create_task(launcher.supervisor.wait())
    launcher.workers[0].lose()
    await run_ready_tasks()
    assert not waiting.done()
    assert launcher.running == ["worker 1"]  # nothing is started again before one serves
    launcher.workers[1].lose()
    with pytest.raises(ServiceDied, match="worker 1 exited with status 1; its last lines say why"):
        await waiting
    await launcher.stop()


async def test_a_worker_that_was_lost_before_another_served_is_started_afterwards() -> None:
    launcher = FakeLauncher()
    await launcher.started(2, serves=False)
    launcher.workers[0].lose()
    await run_ready_tasks()
    again = "worker 0 exited with status 1; it is started again after 1 s"
    assert launcher.supervisor.pending == {"worker 0": again}
    launcher.supervisor.serves()
    await run_ready_tasks()
    assert launcher.running == ["worker 0", "worker 1"]
    assert not launcher.supervisor.pending
    await launcher.stop()


async def test_a_worker_that_was_drained_is_started_again_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    launcher = FakeLauncher()
    await launcher.started(2)
    launcher.workers[0].lose(status=0)
    await run_ready_tasks()
    assert launcher.running == ["worker 0", "worker 1"]
    (record,) = (one for one in caplog.records if "workers left" in one.getMessage())
    again = "worker 0 has drained and left; workers left: 1; it is started again after 1 s"
    assert (record.levelname, record.getMessage()) == ("INFO", again)
    await launcher.stop()


async def test_workers_that_are_stopped_are_drained_and_stay_away() -> None:
    launcher = FakeLauncher()
    await launcher.started(2)
    await launcher.supervisor.stop(within_s=5)
    await run_ready_tasks()
    assert [worker.told for worker in launcher.workers] == [["end within 5 s"]] * 2
    await launcher.stop()


async def test_nothing_starts_again_after_all_are_killed() -> None:
    launcher = FakeLauncher()
    await launcher.started(2)
    launcher.supervisor.kill()
    await run_ready_tasks()
    assert [worker.told for worker in launcher.workers] == [["SIGKILL"]] * 2
    await launcher.stop()


async def test_a_worker_that_is_being_started_is_killed_with_the_others() -> None:
    launcher = FakeLauncher()
    await launcher.started(2)
    launcher.launches.clear()
    launcher.workers[0].lose()
    await run_ready_tasks()
    launcher.supervisor.kill()
    gone = asyncio.create_task(launcher.supervisor.gone())
    await run_ready_tasks()
    assert not gone.done()
    launcher.launches.set()
    await gone
    assert [worker.told for worker in launcher.workers[1:]] == [["SIGKILL"]] * 2
    await launcher.stop()

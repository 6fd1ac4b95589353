"""Queues of requests that wait until the launcher has loaded their model."""

import asyncio
import time

import pytest

from signalbox_contract.errors import NotFound, ResourceExhausted, RpcError, Unavailable
from signalbox_contract.model_state import ModelState
from signalbox_router.schedulers.launcher import model_starts
from signalbox_router.schedulers.launcher.launched_models import (
    LaunchedModel,
    LaunchedModels,
)
from signalbox_router.schedulers.launcher.model_starts import (
    NO_TRACE,
    LauncherLost,
    ModelStarts,
    TraceContext,
)
from signalbox_rpc.metrics.histogram import Histogram
from tests.waiting import EVENT_S, eventually, run_ready_tasks

LONG_S = EVENT_S


class ScriptedLauncher:
    """Records the calls; each fails with the next error, or waits while there is none."""

    def __init__(self, *errors: RpcError) -> None:
        self.errors = list(errors)
        self.calls: list[str] = []
        self.num_waiting = 0

    async def load(self, name: str, *, timeout_s: float, trace: TraceContext = NO_TRACE) -> None:
        self.calls.append(name)
        if self.errors:
            raise self.errors.pop(0)
        self.num_waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.num_waiting -= 1


def make_starts(
    launcher: ScriptedLauncher,
    *models: LaunchedModel,
    timeout_s: float = LONG_S,
    max_waiting: int = 8,
) -> ModelStarts:
    launched = LaunchedModels()
    launched.update(models or [LaunchedModel(name=name) for name in "ab"], revision=1)
    return ModelStarts(launched, launcher, timeout_s=timeout_s, max_waiting=max_waiting)


async def check_nothing_is_left(starts: ModelStarts, launcher: ScriptedLauncher) -> None:
    await eventually(lambda: not starts.num_waiting and not launcher.num_waiting)
    assert not starts._queues


async def test_requests_for_a_model_go_on_in_their_order_after_one_call() -> None:
    launcher = ScriptedLauncher()
    starts = make_starts(launcher)
    ended: list[str] = []

    async def wait(request: str) -> None:
        await starts.wait(request[0])
        ended.append(request)

    async with asyncio.TaskGroup() as group:
        for request in ("a1", "b1", "a2", "a3"):
            group.create_task(wait(request))
        await run_ready_tasks()
        assert sorted(launcher.calls) == ["a", "b"]
        assert [starts.num_waiting_for(name) for name in "ab"] == [3, 1]
        starts.served(["a"])
        await run_ready_tasks()
        assert ended == ["a1", "a2", "a3"]
        await starts.wait("a")  # it is served by now
        starts.served(["a", "b"])
    assert ended == ["a1", "a2", "a3", "b1"] and len(launcher.calls) == 2
    await check_nothing_is_left(starts, launcher)


async def test_a_full_queue_refuses_new_requests_alone() -> None:
    launcher = ScriptedLauncher()
    starts = make_starts(launcher, max_waiting=1)
    first = starts.enter("a")
    for name in "ab":
        with pytest.raises(ResourceExhausted) as refused:
            starts.enter(name)
        assert refused.value.retry_after_s
    resumed = starts.enter("b", is_new=False)
    starts.served(["a", "b"])
    await asyncio.gather(first, resumed)
    await check_nothing_is_left(starts, launcher)


async def test_a_start_that_takes_too_long_is_unavailable() -> None:
    launcher = ScriptedLauncher()
    loading = LaunchedModel(name="a", state=ModelState.WAITING, reason="b is busy")
    starts = make_starts(launcher, loading, timeout_s=0.01)
    with pytest.raises(Unavailable, match=r"within 0\.01 s, and is waiting: b is busy") as late:
        await starts.wait("a")
    assert late.value.retry_after_s
    await check_nothing_is_left(starts, launcher)


async def test_a_failed_start_ends_new_requests_and_is_repeated_for_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    launcher = ScriptedLauncher(Unavailable("no such file", 0.001))
    starts = make_starts(launcher)
    resumed = starts.enter("a", is_new=False)
    with pytest.raises(Unavailable, match="no such file"):
        await starts.wait("a")
    await eventually(lambda: len(launcher.calls) == 2)
    assert "no such file" not in caplog.text  # the launcher has logged it
    starts.served(["a"])
    await resumed
    await check_nothing_is_left(starts, launcher)


@pytest.mark.parametrize("error", [ResourceExhausted("it cannot fit"), NotFound("no such model")])
async def test_what_never_starts_ends_all_requests(
    error: RpcError, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = ScriptedLauncher(error)
    starts = make_starts(launcher)
    waits = [starts.enter("a", is_new=is_new) for is_new in (True, False)]
    ends = await asyncio.gather(*waits, return_exceptions=True)
    assert ends == [error, error] and launcher.calls == ["a"]
    assert str(error) in caplog.text
    await check_nothing_is_left(starts, launcher)


async def test_a_model_that_has_failed_is_not_started_again_for_a_while() -> None:
    launcher = ScriptedLauncher()
    failed = LaunchedModel(
        name="a", state=ModelState.FAILED, reason="bad file", held_until=time.monotonic() + LONG_S
    )
    starts = make_starts(launcher, failed)
    with pytest.raises(Unavailable, match="has failed to start: bad file; ") as held:
        await starts.wait("a")
    assert held.value.retry_after_s is not None and held.value.retry_after_s > LONG_S / 2
    assert not launcher.calls
    starts.launched.update([LaunchedModel(name="a", state=ModelState.FAILED)], revision=2)
    wait = starts.enter("a")
    await run_ready_tasks()
    assert launcher.calls == ["a"]
    wait.cancel()
    await check_nothing_is_left(starts, launcher)


async def test_a_lost_launcher_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_starts, "AGAIN_S", 0.0)
    launcher = ScriptedLauncher(LauncherLost("gone"), LauncherLost("gone"))
    starts = make_starts(launcher)
    wait = starts.enter("a")
    await eventually(lambda: launcher.num_waiting)
    assert launcher.calls == ["a"] * 3
    starts.served(["a"])
    await wait
    await check_nothing_is_left(starts, launcher)


async def test_the_call_ends_with_the_last_request_that_waits() -> None:
    launcher = ScriptedLauncher()
    starts = make_starts(launcher)
    tasks = [asyncio.create_task(starts.wait("a")) for _ in range(2)]
    await run_ready_tasks()
    tasks[0].cancel()
    await run_ready_tasks()
    assert launcher.num_waiting == 1
    tasks[1].cancel()
    await check_nothing_is_left(starts, launcher)
    assert all(task.cancelled() for task in tasks)


async def test_samples_count_the_waits() -> None:
    launcher = ScriptedLauncher()
    starts = make_starts(launcher)
    waits = [starts.enter("a") for _ in range(3)]
    waits[0].cancel()
    await run_ready_tasks()
    starts.served(["a"])
    await asyncio.gather(*waits[1:])
    await run_ready_tasks()
    samples = {(one.name, one.labels["model_name"]): one.value for one in starts.samples()}
    assert samples["router_requests_waiting_for_model", "a"] == 0
    waited = samples["model_wait_seconds", "a"]
    assert isinstance(waited, Histogram) and sum(waited.counts) == 2
    assert samples["model_waits_failed", "a"] == 1
    await check_nothing_is_left(starts, launcher)

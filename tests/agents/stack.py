"""A router with HTTP, a scheduler, and workers that answer as a script says."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from signalbox_router.main import Router
from signalbox_scheduler.config import SchedulerConfig
from tests.agents.scripted_executor import (
    Family,
    Script,
    ScriptedExecutor,
    make_scripted_runner,
)
from tests.integration.stack import (
    RunningScheduler,
    RunningWorker,
    assert_idle,
    running_router,
    running_scheduler,
    running_worker,
)
from tests.waiting import eventually


@dataclass(slots=True)
class ScriptedStack:
    scheduler: RunningScheduler
    router: Router
    url: str
    """Of the HTTP API, without a path."""
    workers: list[RunningWorker]
    executors: list[ScriptedExecutor]
    """Those of the workers."""

    async def kill_busy_worker(self) -> None:
        """Drops all connections of the worker that has drawn most."""
        busy = max(range(len(self.executors)), key=lambda i: self.executors[i].num_drawn)
        await self.workers[busy].kill()


@contextlib.asynccontextmanager
async def scripted_stack(
    family: Family,
    script: Script,
    *,
    num_workers: int = 1,
    api_keys: str | None = None,
    **settings: Any,
) -> AsyncIterator[ScriptedStack]:
    """Runs the services; in the end no request, block or task is left.

    Args:
        api_keys: path of the file of keys that the HTTP API demands one of.
        settings: those of `SimulatedConfig`.
    """
    async with contextlib.AsyncExitStack() as running:
        scheduler = await running.enter_async_context(running_scheduler(SchedulerConfig(port=0)))
        runners = [make_scripted_runner(family, script, **settings) for _ in range(num_workers)]
        workers = [
            await running.enter_async_context(
                running_worker(scheduler.address, lambda runner=runner: runner)  # type: ignore[misc]
            )
            for runner in runners
        ]
        router = await running.enter_async_context(
            running_router(scheduler.address, http_port=0, api_keys=api_keys)
        )
        await eventually(lambda: len(scheduler.cluster.step_loops) == num_workers)
        assert router.http is not None
        url = f"http://127.0.0.1:{router.http.port}"
        executors = [runner.executor for runner in runners]
        yield ScriptedStack(scheduler, router, url, workers, executors)
        await assert_idle(scheduler)

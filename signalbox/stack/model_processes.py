"""The scheduler and the workers of one model as separate processes, supervised."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, NoReturn, Protocol

from signalbox.settings.flags.service_flags import to_environment, to_flags
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.processes.child_processes import (
    SERVING,
    STARTING,
    WAITING,
    Child,
    Started,
    start,
)
from signalbox.stack.processes.news_reader import NewsReader
from signalbox.stack.processes.startup_display import StartupDisplay
from signalbox.stack.processes.worker_supervisor import (
    LaunchedWorker,
    ServiceDied,
    WorkerSupervisor,
)
from signalbox.stack.worker_launcher import WorkerAddresses, make_launcher
from signalbox_contract.startup import StartupPhase, StartupProgress
from signalbox_scheduler.config import SchedulerSettings

END_S = 10.0
"""Seconds for a process without work to exit."""


class SchedulerAddresses(WorkerAddresses, Protocol):
    """The addresses of the processes of a model."""

    @property
    def scheduler_port(self) -> int: ...


class ModelProcesses:
    """Starts, watches and ends them."""

    def __init__(
        self,
        settings: ServeSettings,
        addresses: SchedulerAddresses,
        display: StartupDisplay,
        *,
        prefix: str = "",
    ) -> None:
        """Args: prefix: begins the names of the processes."""
        self._settings = settings
        self._addresses = addresses
        self._display = display
        self._prefix = prefix
        self._launcher = make_launcher(settings, addresses)
        self._started: list[Started] = []
        self._news = NewsReader(self._take)
        self._scheduler: Child | None = None
        self.workers = WorkerSupervisor(self._launch_worker)
        self.serves = asyncio.Event()
        """Set when the scheduler first has a worker that serves."""

    @property
    def running(self) -> list[LaunchedWorker]:
        """The processes that run."""
        return [*([self._scheduler] if self._scheduler else []), *self.workers.workers]

    def launch(self, *, fork: bool = False) -> None:
        """Starts scheduler and workers, in this order.

        Args:
            fork: makes copies of this process; see `child_processes.start`.
        """
        settings, addresses, tls = self._settings, self._addresses, self._settings.services_tls
        arguments = to_flags(
            settings,
            SchedulerSettings,
            host=settings.scheduler_host,
            port=addresses.scheduler_port,
            metrics_port=addresses.metrics_port(1),
            metrics_socket=addresses.metrics_socket("scheduler"),
            # The certificates of the public ports are others, or none.
            **{f"tls_{name}": getattr(tls, name) for name in ("cert", "key", "ca", "client_ca")},
        )
        secrets = to_environment(settings, SchedulerSettings)
        name = f"{self._prefix}scheduler"
        self._started.append(start(name, ["scheduler", *arguments], secrets, fork=fork))
        for place in range(settings.workers):
            self._started.append(self._start_worker(place, fork=fork))

    async def watch(self) -> None:
        """Watches the processes from this event loop; to be called once, after `launch`."""
        self._scheduler, *workers = [await self._news.watch(one) for one in self._started]
        self._started.clear()
        for place, worker in enumerate(workers):
            self.workers.adopt(place, worker)

    async def report(self) -> NoReturn:
        """Tells the scheduler what the workers wait for; never returns."""
        from signalbox.client.connection import Connection
        from signalbox.client.scheduler_client import SchedulerClient
        from signalbox.stack.worker_report import report_workers

        settings, how = self._settings, Connection(tls=self._settings.services_tls)
        async with SchedulerClient(self._addresses.scheduler, how) as client:
            await report_workers(
                self.workers,
                client,
                placement=settings.placement.partition("=")[0],
                num_workers=settings.workers,
            )

    async def wait(self) -> NoReturn:
        """Never returns; raises ServiceDied when the model can no longer be served."""
        assert self._scheduler is not None, "watched"
        await first_fault(died(self._scheduler), self.workers.wait())

    async def stop(self, *, within_s: float = END_S) -> None:
        """Ends the workers, which drain for as long, then the scheduler."""
        await self.workers.stop(within_s=within_s)
        if self._scheduler:
            await self._scheduler.end(within_s=END_S)

    def kill(self) -> None:
        """Ends the processes at once."""
        for started in self._started:  # one that could not be started has left them unwatched
            os.kill(started.pid, signal.SIGKILL)
            started.wait()
        self._started.clear()
        self.workers.kill()
        if self._scheduler:
            self._scheduler.send(signal.SIGKILL)

    async def gone(self) -> None:
        """Returns when the processes have ended, which have been killed."""
        await self.workers.gone()
        if self._scheduler:
            await self._scheduler.wait()

    def _start_worker(self, place: int, *, fork: bool = False) -> Started:
        name, arguments, variables = self._launcher.command(place)
        return start(f"{self._prefix}{name}", arguments, variables, fork=fork)

    async def _launch_worker(self, place: int) -> Child:
        return await self._news.watch(self._start_worker(place))

    def _take(self, child: Child, kind: str, text: str) -> None:
        if kind == SERVING:
            self.serves.set()
            self.workers.serves()
        elif kind == STARTING:
            phase, num_done, num_total = text.split()
            progress = StartupProgress(StartupPhase[phase], int(num_done), int(num_total))
            self._display.report(child.name, progress)
        elif kind == WAITING:
            self.workers.waits(child.name, text)


async def died(child: Child) -> NoReturn:
    """Raises ServiceDied when a process has ended."""
    status = await child.wait()
    told = "; its last lines say why" if status >= 0 else ""
    raise ServiceDied(f"{child.name} {child.ending}{told}", was_killed=status < 0)


async def first_fault(*watches: Coroutine[Any, Any, None]) -> NoReturn:
    """Raises what the first of some coroutines raises that never return."""
    tasks = [asyncio.ensure_future(one) for one in watches]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        faults = [task.exception() for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
    raise next(fault for fault in faults if fault is not None)

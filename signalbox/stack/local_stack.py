"""Router, scheduler and workers as separate processes, supervised.

Router and scheduler are processes of this machine, and so is each worker or, on Ray, its driver.
Only the router listens on the configured address; the others use loopback ports unless workers are
elsewhere.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator

from signalbox.settings.flags.service_flags import to_environment, to_flags
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.processes.child_processes import (
    SERVING,
    STARTING,
    WAITING,
    Child,
    Started,
    start,
    watch,
)
from signalbox.stack.processes.startup_display import make_display
from signalbox.stack.processes.worker_supervisor import ServiceDied, WorkerSupervisor
from signalbox.stack.stack_addresses import StackAddresses
from signalbox.stack.start_checks import check_start
from signalbox.stack.worker_launcher import make_launcher
from signalbox_contract.startup import StartupPhase, StartupProgress
from signalbox_router.config import RouterSettings
from signalbox_rpc.lifetime.stop_signals import stopping_later
from signalbox_scheduler.config import SchedulerSettings

logger = logging.getLogger(__name__)

END_S = 10.0
"""Seconds for a process without work to exit."""


class CutOff(RuntimeError):
    """A second signal has killed the stack."""


class LocalStack:
    """The processes of one `signalbox serve`."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self.addresses = StackAddresses(settings)
        self._launcher = make_launcher(settings, self.addresses)
        self._started: list[Started] = []
        self._router: Child | None = None
        self._scheduler: Child | None = None
        self._workers = WorkerSupervisor(self._launch_worker)
        self.model_name = ""
        self._serving = asyncio.Event()
        self._display = make_display(log_format=settings.log_format)
        self._listening: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running processes, by name."""
        running = [*self._services(), *self._workers.workers]
        return {child.name: child.pid for child in running}

    def launch(self, *, fork: bool = False) -> None:
        """Starts the processes. Raises the exceptions of `check_start`.

        Args:
            fork: makes copies of this process; see `child_processes.start`.
        """
        if not fork:
            check_start(self._settings)
            self._launch(fork=False)
            return
        with stopping_later():
            check_start(self._settings)
            import signalbox.stack.shared_imports  # noqa: F401

            self._launch(fork=True)

    def _launch(self, *, fork: bool) -> None:
        """Starts scheduler, workers and router, in this order."""
        settings, addresses = self._settings, self.addresses
        tls = settings.services_tls
        self._start(
            "scheduler",
            SchedulerSettings,
            fork=fork,
            host=settings.scheduler_host,
            port=addresses.scheduler_port,
            metrics_port=addresses.metrics_port(1),
            metrics_socket=addresses.metrics_socket("scheduler"),
            # The certificates of the public ports are others, or none.
            **{f"tls_{name}": getattr(tls, name) for name in ("cert", "key", "ca", "client_ca")},
        )
        for place in range(settings.workers):
            command = self._launcher.command(place)
            self._started.append(start(*command, fork=fork))
        self._start(
            "router",
            RouterSettings,
            fork=fork,
            grpc_port=addresses.grpc_port,
            http_port=addresses.http_port,
            scheduler=addresses.scheduler,
            metrics_sources=addresses.metrics_sources,
        )

    async def watch(self) -> None:
        """Watches the processes from this event loop; to be called once, after `launch`."""
        scheduler, *workers, router = [await self._watch(one) for one in self._started]
        self._scheduler, self._router = scheduler, router
        for place, worker in enumerate(workers):
            self._workers.adopt(place, worker)

    async def _watch(self, started: Started) -> Child:
        child = await watch(started)
        listening = asyncio.create_task(self._listen(child))
        self._listening.add(listening)
        listening.add_done_callback(self._listening.discard)
        return child

    async def _launch_worker(self, place: int) -> Child:
        return await self._watch(start(*self._launcher.command(place)))

    async def until_serving(self) -> None:
        """Shows progress, and returns when the router serves. Raises ServiceDied."""
        async with self._display.refreshed():
            await self._until_serving()

    async def report(self) -> None:
        """Tells the scheduler what the workers wait for; never returns."""
        from signalbox.client.connection import Connection
        from signalbox.client.scheduler_client import SchedulerClient
        from signalbox.stack.worker_report import report_workers

        settings, tls = self._settings, self._settings.services_tls
        async with SchedulerClient(self.addresses.scheduler, Connection(tls=tls)) as client:
            await report_workers(
                self._workers,
                client,
                placement=settings.placement.partition("=")[0],
                num_workers=settings.workers,
            )

    async def wait(self) -> None:
        """Never returns; raises ServiceDied when the stack can no longer serve."""
        services = {asyncio.create_task(child.wait()): child for child in self._services()}
        workers = asyncio.create_task(self._workers.wait())
        try:
            done, _ = await asyncio.wait([*services, workers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*services, workers):
                task.cancel()
        for task in services.keys() & done:
            child = services[task]
            told = "; its last lines say why" if child.ended.result() >= 0 else ""
            raise ServiceDied(f"{child.name} {child.ending}{told}")
        workers.result()

    async def stop(self) -> None:
        """Ends the processes in order: the router drains, workers leave, the scheduler exits."""
        if self._router:
            await self._router.end(within_s=self._settings.drain_timeout + END_S)
        await self._workers.stop(within_s=END_S)
        if self._scheduler:
            await self._scheduler.end(within_s=END_S)
        self.addresses.close()

    def kill(self) -> None:
        """Ends the processes at once."""
        self._workers.kill()
        for child in self._services():
            child.send(signal.SIGKILL)

    def _services(self) -> list[Child]:
        return [child for child in (self._router, self._scheduler) if child]

    def _start(
        self,
        command: str,
        settings_class: type[RouterSettings | SchedulerSettings],
        *,
        fork: bool,
        **replaced: object,
    ) -> None:
        arguments = [command, *to_flags(self._settings, settings_class, **replaced)]
        secrets = to_environment(self._settings, settings_class)
        self._started.append(start(command, arguments, secrets, fork=fork))

    async def _until_serving(self) -> None:
        watching = asyncio.ensure_future(self.wait())
        serving = asyncio.ensure_future(self._serving.wait())
        try:
            await asyncio.wait({watching, serving}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                self.kill()  # no request runs yet, so nothing drains
                watching.result()
        finally:
            for task in (watching, serving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ServiceDied):
                    await task

    async def _listen(self, child: Child) -> None:
        """Reads a process's announcements until it ends."""
        while line := (await child.news.readline()).decode():
            kind, _, text = line.strip().partition(" ")
            if kind == SERVING:
                self.model_name = text
                self._serving.set()
                self._workers.serves()
            elif kind == STARTING:
                phase, num_done, num_total = text.split()
                progress = StartupProgress(StartupPhase[phase], int(num_done), int(num_total))
                self._display.report(child.name, progress)
            elif kind == WAITING:
                self._workers.waits(child.name, text)


@contextlib.asynccontextmanager
async def running(settings: ServeSettings) -> AsyncIterator[LocalStack]:
    """Yields a stack that serves; ends it afterwards. Raises the exceptions of `check_start`."""
    stack = LocalStack(settings)
    stack.launch()
    async with serving(stack):
        yield stack


@contextlib.asynccontextmanager
async def serving(stack: LocalStack) -> AsyncIterator[None]:
    """Lets a launched stack serve while the context lasts; ends it afterwards."""
    try:
        await stack.watch()
        await stack.until_serving()
        yield
        await stack.stop()
    finally:
        stack.kill()


async def serve(stack: LocalStack) -> None:
    """Runs a launched stack until SIGTERM or SIGINT; a second signal kills it at once, and raises
    CutOff."""
    stopping, cut_off = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            cut_off.set()
            stack.kill()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    await stack.watch()
    work = asyncio.ensure_future(_serve_and_wait(stack))
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        logger.info("stopping")
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await stack.stop()
    if cut_off.is_set():
        raise CutOff("ended at once by a second signal")


async def _serve_and_wait(stack: LocalStack) -> None:
    await stack.until_serving()
    addresses = stack.addresses
    http = f" and {addresses.http_url}" if addresses.http_url else ""
    router = f"{addresses.router} (for --router)"
    logger.info("serving %s at %s%s; Ctrl-C stops", stack.model_name, router, http)
    if addresses.console_url:
        logger.info("console at %s", addresses.console_url)
    reporting = asyncio.create_task(stack.report())
    try:
        await stack.wait()
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)

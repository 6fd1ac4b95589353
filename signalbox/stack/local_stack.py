"""Router, scheduler and workers as separate processes of this machine, supervised.

Only the router listens on the configured address; the others use loopback ports.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Mapping

from contract.startup import StartupPhase, StartupProgress
from gpu_worker.native.threads import num_cores
from gpu_worker.worker_settings import WorkerSettings
from router.config import RouterSettings
from scheduler_svc.config import SchedulerSettings
from signalbox.flags.service_flags import to_environment, to_flags
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.child_processes import (
    SERVING,
    STARTING,
    Child,
    Started,
    start,
    stopping_later,
    watch,
)
from signalbox.stack.gpu_assignment import gpu_shares, visible_gpus
from signalbox.stack.stack_addresses import StackAddresses
from signalbox.stack.start_checks import LOOPBACK, check_start
from signalbox.startup_display import make_display

logger = logging.getLogger(__name__)

END_S = 10.0
"""Seconds for a process without work to exit."""

_TLS = ("tls_cert", "tls_key", "tls_client_ca")


class ServiceDied(RuntimeError):
    """A process of the stack ended on its own."""


class CutOff(RuntimeError):
    """A second signal has killed the stack."""


class LocalStack:
    """The processes of one `signalbox serve`."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self.addresses = StackAddresses(settings)
        self._started: list[Started] = []
        self._router: Child | None = None
        self._scheduler: Child | None = None
        self._workers: list[Child] = []
        self.model_name = ""
        self._serving = asyncio.Event()
        self._display = make_display(log_format=settings.log_format)
        self._listening: list[asyncio.Task[None]] = []

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running processes, by name."""
        return {child.name: child.pid for child in self._children()}

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
        addresses = self.addresses
        self._start(
            "scheduler",
            SchedulerSettings,
            fork=fork,
            host=LOOPBACK,
            port=addresses.scheduler_port,
            metrics_port=addresses.metrics_port(1),
            metrics_socket=addresses.metrics_socket("scheduler"),
        )
        for index, gpus in enumerate(self._gpu_shares()):
            name = f"worker {index}"
            self._start(
                "worker",
                WorkerSettings,
                fork=fork,
                name=name,
                environment=gpus,
                host=LOOPBACK,
                port=0,
                scheduler=addresses.scheduler,
                metrics_port=addresses.metrics_port(2 + index),
                metrics_socket=addresses.metrics_socket(name),
                num_threads=_threads_per_worker(self._settings),
            )
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
        self._scheduler, *self._workers, self._router = [await watch(one) for one in self._started]
        self._listening = [asyncio.create_task(self._listen(one)) for one in self._children()]

    async def until_serving(self) -> None:
        """Shows progress, and returns when the router serves. Raises ServiceDied."""
        async with self._display.refreshed():
            await self._until_serving()

    async def wait(self) -> None:
        """Never returns; raises ServiceDied when the stack can no longer serve."""
        while True:
            waits = {asyncio.create_task(child.wait()): child for child in self._children()}
            try:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waits:
                    task.cancel()
            self._lost([waits[task] for task in done])

    async def stop(self) -> None:
        """Ends the processes in order: the router drains, workers leave, the scheduler exits."""
        if self._router:
            await self._router.end(within_s=self._settings.drain_timeout + END_S)
        await asyncio.gather(*(worker.end(within_s=END_S) for worker in self._workers))
        if self._scheduler:
            await self._scheduler.end(within_s=END_S)
        self.addresses.close()

    def kill(self) -> None:
        """Ends the processes at once."""
        for child in self._children():
            child.send(signal.SIGKILL)

    def _children(self) -> list[Child]:
        return [child for child in (self._router, self._scheduler, *self._workers) if child]

    def _gpu_shares(self) -> list[dict[str, str]]:
        """Returns the GPU variables of each worker's environment."""
        settings = self._settings
        if settings.simulate or settings.device == "cpu":
            return [{}] * settings.workers
        return gpu_shares(
            visible_gpus() if settings.workers > 1 else [],
            num_workers=settings.workers,
            num_ranks=settings.parallel.num_ranks,
        )

    def _start(
        self,
        command: str,
        settings_class: type[RouterSettings | SchedulerSettings | WorkerSettings],
        *,
        fork: bool,
        name: str = "",
        environment: Mapping[str, str] | None = None,
        **replaced: object,
    ) -> None:
        # Certificates are for the public ports; the rest stays on the loopback interface.
        if settings_class is not RouterSettings:
            replaced |= dict.fromkeys(_TLS)
        arguments = [command, *to_flags(self._settings, settings_class, **replaced)]
        secrets = to_environment(self._settings, settings_class)
        variables = {**(environment or {}), **secrets}
        self._started.append(start(name or command, arguments, variables, fork=fork))

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
            elif kind == STARTING:
                phase, num_done, num_total = text.split()
                progress = StartupProgress(StartupPhase[phase], int(num_done), int(num_total))
                self._display.report(child.name, progress)

    def _lost(self, ended: list[Child]) -> None:
        """Continues without a worker if others are left; raises ServiceDied otherwise."""
        for child in ended:
            message = f"{child.name} {child.ending}"
            if child not in self._workers or len(self._workers) == 1:
                told = "; its last lines say why" if child.ended.result() >= 0 else ""
                raise ServiceDied(message + told)
            self._workers.remove(child)
            logger.warning("%s; workers left: %d", message, len(self._workers))


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
    logger.info("serving %s at %s%s; Ctrl-C stops", stack.model_name, addresses.router, http)
    await stack.wait()


def _threads_per_worker(settings: ServeSettings) -> int | None:
    if settings.num_threads or settings.workers == 1 or settings.simulate:
        return settings.num_threads
    return max(1, num_cores() // settings.workers)

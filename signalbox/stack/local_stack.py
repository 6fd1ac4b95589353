"""Router, scheduler and workers as separate processes of this machine, supervised.

Only the router listens on the configured address; the others use free loopback ports.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from contract.startup import StartupPhase, StartupProgress
from gpu_worker.worker_settings import WorkerSettings
from router.config import RouterSettings
from rpc.transport.listening_ports import BindError, check_free, join_address
from scheduler_svc.config import SchedulerSettings
from signalbox.flags.service_flags import to_environment, to_flags
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.child_processes import SERVING, STARTING, Child, spawn
from signalbox.stack.gpu_assignment import gpu_shares, visible_gpus
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
        self._port = settings.grpc_port or _free_port()
        self._http_port = settings.http_port or _free_port()
        self._scheduler_port = self._choose_scheduler_port()
        self._router: Child | None = None
        self._scheduler: Child | None = None
        self._workers: list[Child] = []
        self.model_name = ""
        self._sockets = tempfile.TemporaryDirectory(prefix="signalbox-")
        self._metrics_sockets: dict[str, str] = {}
        self._serving = asyncio.Event()
        self._display = make_display(log_format=settings.log_format)
        self._listening: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        """Address of the router for clients."""
        return join_address(_reachable(self._settings.host), self._port)

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler, for `signalbox top` and similar commands."""
        return join_address(LOOPBACK, self._scheduler_port)

    @property
    def http_url(self) -> str | None:
        """URL of the HTTP API for clients, if it is on."""
        if not self._settings.http:
            return None
        scheme = "https" if self._settings.tls_cert else "http"
        address = join_address(_reachable(self._settings.host), self._http_port)
        return f"{scheme}://{address}/v1"

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running processes, by name."""
        return {child.name: child.process.pid for child in self._children()}

    async def start(self) -> None:
        """Starts the processes and returns when the router serves.

        Raises ServiceDied, and the exceptions of `check_start`.
        """
        settings, scheduler = self._settings, self.scheduler_address
        check_start(settings)
        self._scheduler = await self._spawn(
            "scheduler",
            SchedulerSettings,
            host=LOOPBACK,
            port=self._scheduler_port,
            metrics_port=self._metrics_port(1),
            metrics_socket=self._metrics_socket("scheduler"),
        )
        for index, gpus in enumerate(await self._gpu_shares()):
            worker = await self._spawn(
                "worker",
                WorkerSettings,
                number=index,
                environment=gpus,
                host=LOOPBACK,
                port=0,
                scheduler=scheduler,
                metrics_port=self._metrics_port(2 + index),
                metrics_socket=self._metrics_socket(f"worker {index}"),
                num_threads=_threads_per_worker(settings),
            )
            self._workers.append(worker)
        self._router = await self._spawn(
            "router",
            RouterSettings,
            grpc_port=self._port,
            http_port=self._http_port,
            scheduler=scheduler,
            metrics_sources=",".join(
                f"{name}={path}" for name, path in self._metrics_sockets.items()
            ),
        )
        async with self._display.refreshed():
            await self._until_serving()

    async def wait(self) -> None:
        """Never returns; raises ServiceDied when the stack can no longer serve."""
        while True:
            waits = {asyncio.create_task(child.process.wait()): child for child in self._children()}
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
        self._sockets.cleanup()

    def kill(self) -> None:
        """Ends the processes at once."""
        for child in self._children():
            child.send(signal.SIGKILL)

    def _children(self) -> list[Child]:
        return [child for child in (self._router, self._scheduler, *self._workers) if child]

    async def _gpu_shares(self) -> list[dict[str, str]]:
        """Returns the GPU variables of each worker's environment."""
        settings = self._settings
        if settings.simulate or settings.device == "cpu":
            return [{}] * settings.workers
        return gpu_shares(
            await asyncio.to_thread(visible_gpus) if settings.workers > 1 else [],
            num_workers=settings.workers,
            num_ranks=settings.tensor_parallel_size,
        )

    def _choose_scheduler_port(self) -> int:
        """Returns the port after the router's, which `signalbox top` tries, or any if it is
        taken.

        Other configured ports are left free until their services start.
        """
        port, settings = self._port + 1, self._settings
        others = {self._http_port} if settings.http else set()
        if settings.metrics_port:
            others |= {settings.metrics_port + place for place in range(2 + settings.workers)}
        try:
            check_free(LOOPBACK, port)
        except (BindError, OverflowError):
            return _free_port()
        return _free_port() if port in others else port

    def _metrics_port(self, place: int) -> int | None:
        """Returns the metrics port of a process behind the router: the next ones after the
        router's."""
        first = self._settings.metrics_port
        return first + place if first else first

    def _metrics_socket(self, name: str) -> str | None:
        """Returns the path of a process's metrics socket; None if the HTTP API is off."""
        if not self._settings.http:
            return None
        path = Path(self._sockets.name) / name.replace(" ", "-")
        return self._metrics_sockets.setdefault(name, str(path))

    async def _spawn(
        self,
        command: str,
        settings_class: type[RouterSettings | SchedulerSettings | WorkerSettings],
        *,
        number: int | None = None,
        environment: Mapping[str, str] | None = None,
        **replaced: object,
    ) -> Child:
        name = command if number is None else f"{command} {number}"
        # Certificates are for the public ports; the rest stays on the loopback interface.
        if settings_class is not RouterSettings:
            replaced |= dict.fromkeys(_TLS)
        arguments = [command, *to_flags(self._settings, settings_class, **replaced)]
        secrets = to_environment(self._settings, settings_class)
        child = await spawn(name, arguments, {**(environment or {}), **secrets})
        self._listening.append(asyncio.create_task(self._listen(child)))
        return child

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
            message = f"{child.name} {_how_it_ended(child)}"
            if child not in self._workers or len(self._workers) == 1:
                raise ServiceDied(message)
            self._workers.remove(child)
            logger.warning("%s; workers left: %d", message, len(self._workers))


@contextlib.asynccontextmanager
async def running(settings: ServeSettings) -> AsyncIterator[LocalStack]:
    """Yields a stack that serves; ends it afterwards."""
    stack = LocalStack(settings)
    try:
        await stack.start()
        yield stack
        await stack.stop()
    finally:
        stack.kill()


async def serve(settings: ServeSettings) -> None:
    """Runs a stack until SIGTERM or SIGINT; a second signal kills it at once, and raises CutOff."""
    stack = LocalStack(settings)
    stopping, cut_off = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            cut_off.set()
            stack.kill()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    work = asyncio.ensure_future(_start_and_wait(stack))
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


async def _start_and_wait(stack: LocalStack) -> None:
    await stack.start()
    http = f" and {stack.http_url}" if stack.http_url else ""
    logger.info("serving %s at %s%s; Ctrl-C stops", stack.model_name, stack.address, http)
    await stack.wait()


def _reachable(host: str) -> str:
    return LOOPBACK if host in ("0.0.0.0", "::", "") else host


def _threads_per_worker(settings: ServeSettings) -> int | None:
    if settings.num_threads or settings.workers == 1 or settings.simulate:
        return settings.num_threads
    return max(1, (os.cpu_count() or 1) // settings.workers)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _how_it_ended(child: Child) -> str:
    code = child.process.returncode or 0
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with status {code}"

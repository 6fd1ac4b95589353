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
from typing import NoReturn, Protocol

from signalbox.settings.flags.service_flags import to_environment, to_flags
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.model_processes import END_S, ModelProcesses, died, first_fault
from signalbox.stack.processes.child_processes import SERVING, Child, Started, start
from signalbox.stack.processes.news_reader import NewsReader
from signalbox.stack.processes.startup_display import make_display
from signalbox.stack.processes.worker_supervisor import ServiceDied
from signalbox.stack.stack_addresses import StackAddresses
from signalbox.stack.start_checks import check_start
from signalbox_router.config import RouterSettings
from signalbox_rpc.lifetime.stop_signals import stopping_later

logger = logging.getLogger(__name__)


class CutOff(RuntimeError):
    """A second signal has killed the stack."""


class Stack(Protocol):
    """The processes of a command, as `serve` runs them."""

    @property
    def addresses(self) -> StackAddresses: ...

    @property
    def served(self) -> str:
        """The models that are served, in words."""

    async def watch(self) -> None:
        """Watches the processes, which have been launched."""

    async def until_serving(self) -> None:
        """Returns when the router serves. Raises ServiceDied."""

    async def attend(self) -> None:
        """Never returns; raises ServiceDied when the stack can no longer serve."""

    async def stop(self) -> None:
        """Drains the processes and ends them."""

    def kill(self) -> None:
        """Ends the processes at once."""


class LocalStack:
    """The processes of one `signalbox serve` of one model."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self.addresses = StackAddresses(settings)
        self._display = make_display(log_format=settings.log_format)
        self._model = ModelProcesses(settings, self.addresses, self._display)
        self._started: Started | None = None
        self._router: Child | None = None
        self._news = NewsReader(self._take)
        self.served = ""
        self._serving = asyncio.Event()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running processes, by name."""
        router = [self._router] if self._router else []
        return {child.name: child.pid for child in (*router, *self._model.running)}

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
        self._model.launch(fork=fork)
        scheduler = self.addresses.scheduler
        self._started = start_router(self._settings, self.addresses, fork=fork, scheduler=scheduler)

    async def watch(self) -> None:
        """Watches the processes from this event loop; to be called once, after `launch`."""
        assert self._started is not None, "launched"
        await self._model.watch()
        self._router = await self._news.watch(self._started)

    async def until_serving(self) -> None:
        """Shows progress, and returns when the router serves. Raises ServiceDied."""
        async with self._display.refreshed():
            await self._until_serving()

    async def attend(self) -> None:
        """Reports to the scheduler, and does what `wait` does."""
        reporting = asyncio.create_task(self._model.report())
        try:
            await self.wait()
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    async def wait(self) -> NoReturn:
        """Never returns; raises ServiceDied when the stack can no longer serve."""
        assert self._router is not None, "watched"
        await first_fault(died(self._router), self._model.wait())

    async def stop(self) -> None:
        """Ends the processes in order: the router drains, workers leave, the scheduler exits."""
        if self._router:
            await self._router.end(within_s=self._settings.drain_timeout + END_S)
        await self._model.stop()
        self.addresses.close()

    def kill(self) -> None:
        """Ends the processes at once."""
        self._model.kill()
        if self._router:
            self._router.send(signal.SIGKILL)

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

    def _take(self, _router: Child, kind: str, text: str) -> None:
        if kind == SERVING:
            self.served = text
            self._serving.set()


def start_router(
    settings: ServeSettings, addresses: StackAddresses, *, fork: bool, **own: object
) -> Started:
    """Starts the router. Args: own: its settings that `settings` lacks."""
    arguments = to_flags(
        settings,
        RouterSettings,
        grpc_port=addresses.grpc_port,
        http_port=addresses.http_port,
        metrics_sources=addresses.metrics_sources,
        **own,
    )
    secrets = to_environment(settings, RouterSettings)
    return start("router", ["router", *arguments], secrets, fork=fork)


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


async def serve(stack: Stack) -> None:
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


async def _serve_and_wait(stack: Stack) -> None:
    await stack.until_serving()
    addresses = stack.addresses
    http = f" and {addresses.http_url}" if addresses.http_url else ""
    router = f"{addresses.router} (for --router)"
    logger.info("serving %s at %s%s; Ctrl-C stops", stack.served, router, http)
    if addresses.console_url:
        logger.info("console at %s", addresses.console_url)
    await stack.attend()

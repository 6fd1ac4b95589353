"""One router, and the processes of several models, which are started when they are asked for."""

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

from signalbox.settings.serve_settings import ServeCommandSettings, ServeSettings
from signalbox.settings.sources import SettingsError
from signalbox.stack.local_stack import start_router
from signalbox.stack.memory_use import memory_of
from signalbox.stack.model_check import WORKER_BYTES
from signalbox.stack.model_processes import END_S, ModelProcesses, died, first_fault
from signalbox.stack.models.model_facts import ModelFacts
from signalbox.stack.models.model_launcher import ListedModel, ModelLauncher
from signalbox.stack.models.model_list import NamedModel
from signalbox.stack.models.model_plan import ModelPlan, Needs, PlannedModel
from signalbox.stack.opening_check import check_opening
from signalbox.stack.processes.child_processes import Child, Started
from signalbox.stack.processes.news_reader import NewsReader
from signalbox.stack.processes.startup_display import StartupDisplay, make_display
from signalbox.stack.stack_addresses import ModelAddresses, StackAddresses, reserve_port
from signalbox.stack.start_checks import LOOPBACK, check_services
from signalbox_contract.model_state import ModelState
from signalbox_rpc.lifetime.stop_signals import stopping_later
from signalbox_rpc.transport.listening_ports import Endpoint, join_address
from signalbox_rpc.transport.server import Server
from signalbox_worker.config import GIB, ModelError
from signalbox_worker.device.ram import available_ram
from signalbox_worker.kv.cache.capacity import cpu_cache_bytes, cpu_swap_bytes
from signalbox_worker.runner.loading.model_source import find_model
from signalbox_worker.runner.native.eligibility import may_have_gpu
from signalbox_worker.runner.ranks.startup_checks import check_store
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_pooler import SIMULATED_POOLING

logger = logging.getLogger(__name__)

SIMULATED_BYTES = GIB // 4
"""Estimated bytes of the processes of a simulated model."""


class StackOfOne:
    """The processes of one model, from one start to its end."""

    def __init__(
        self, settings: ServeSettings, addresses: ModelAddresses, display: StartupDisplay, name: str
    ) -> None:
        self._settings = settings
        self._processes = ModelProcesses(settings, addresses, display, prefix=f"{name} ")
        self._reporting: asyncio.Task[NoReturn] | None = None

    async def start(self) -> None:
        if not self._settings.simulate:
            await asyncio.to_thread(find_model, self._settings)  # its files may have vanished
        self._processes.launch()
        await self._processes.watch()
        serving = asyncio.ensure_future(self._processes.serves.wait())
        losing = asyncio.ensure_future(self._processes.wait())
        try:
            await asyncio.wait({serving, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                losing.result()
        finally:
            serving.cancel()
            losing.cancel()
            await asyncio.gather(serving, losing, return_exceptions=True)
        self._reporting = asyncio.create_task(self._processes.report())

    async def wait(self) -> NoReturn:
        await self._processes.wait()

    async def stop(self) -> None:
        await self._end_report()
        await self._processes.stop(within_s=self._settings.drain_timeout + END_S)

    def kill(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        self._processes.kill()

    async def gone(self) -> None:
        await self._processes.gone()

    def measure(self) -> int:
        return memory_of(child.pid for child in self._processes.running)

    async def _end_report(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)


class ModelsStack:
    """The processes of one `signalbox serve` of several models."""

    def __init__(self, settings: ServeCommandSettings, models: Sequence[NamedModel]) -> None:
        self._settings = settings
        self._models = models
        self.addresses = StackAddresses(settings)
        self._display = make_display(log_format=settings.log_format)
        self._of_models = {
            one.name: ModelAddresses(self.addresses, name=one.name, number=number)
            for number, one in enumerate(models)
        }
        self._reserved = reserve_port()
        self.launcher: ModelLauncher | None = None
        self._server: Server | None = None
        self._started: Started | None = None
        self._router: Child | None = None
        self._news = NewsReader(lambda _child, _kind, _text: None)
        self._running: asyncio.Task[None] | None = None

    @property
    def served(self) -> str:
        """The models, each with what it is doing."""
        assert self.launcher is not None, "watched"
        states = {one.name: self.launcher.state(one.name) for one in self._models}
        return ", ".join(
            name if state is ModelState.LOADED else f"{name} ({state})"
            for name, state in states.items()
        )

    def scheduler_of(self, name: str) -> str:
        """Returns the address of a model's scheduler."""
        return self._of_models[name].scheduler

    def launch(self, *, fork: bool = False) -> None:
        """Reads what the files of the models tell, and starts the router.

        Raises the exceptions of `check_services`, `check_opening` and `check_store`, and
        SettingsError if no model fits, or the kept ones do not.
        """
        with stopping_later():
            check_services(self._settings)
            room = _room(self._settings)
            settings = {one.name: _within(one.settings, room) for one in self._models}
            self.launcher = self._make_launcher(settings, room)
            for one in self._models:  # the router is told of the sockets at its start
                self._of_models[one.name].metrics_socket("scheduler")
                for place in range(one.settings.workers):
                    self._of_models[one.name].metrics_socket(f"worker {place}")
            if fork:
                import signalbox.stack.shared_imports  # noqa: F401
            self._started = start_router(
                self._settings,
                self.addresses,
                fork=fork,
                scheduler=",".join(one.scheduler for one in self._of_models.values()),
                model_launcher=join_address(LOOPBACK, self._port),
            )

    @property
    def _port(self) -> int:
        port: int = self._reserved.getsockname()[1]
        return port

    def _make_launcher(self, settings: Mapping[str, ServeSettings], room: Needs) -> ModelLauncher:
        listed = [self._listed(name, one) for name, one in settings.items()]
        kept = self._settings.keep_warm
        planned = [
            PlannedModel(
                name=one.name,
                needs=_needs(settings[one.name], one),
                is_kept=one.name in kept,
            )
            for one in listed
        ]
        plan = ModelPlan(planned, room=room, idle_timeout_s=self._settings.idle_timeout)
        faults = [fault for one in planned if (fault := plan.never_fits(one.name))]
        if len(faults) == len(planned) or any(plan.never_fits(name) for name in kept):
            raise SettingsError(faults[0])
        for fault in faults:
            logger.error("%s", fault)
        return ModelLauncher(
            listed,
            plan,
            partial(self._make_stack, settings),
            start_timeout_s=self._settings.model_start_timeout,
        )

    def _listed(self, name: str, settings: ServeSettings) -> ListedModel:
        check_store(settings, settings)
        return ListedModel(
            name=name,
            other_names=(settings.model,) if settings.model not in ("", name) else (),
            scheduler=self.scheduler_of(name),
            facts=_facts(settings),
            pool_bytes=_pool_bytes(settings),
            gpu_share=settings.gpu_memory_utilization if _is_on_gpu(settings) else 0.0,
        )

    def _make_stack(self, settings: Mapping[str, ServeSettings], name: str) -> StackOfOne:
        return StackOfOne(settings[name], self._of_models[name], self._display, name)

    async def watch(self) -> None:
        """Watches the router and begins to launch models; to be called once, after `launch`."""
        from signalbox.stack.models import launcher_servicer
        from signalbox_protos.operations.v1 import model_launcher_pb2_grpc

        assert self._started is not None and self.launcher is not None, "launched"
        self._router = await self._news.watch(self._started)
        self._server = Server(Endpoint(host=LOOPBACK, port=self._port))
        self._server.add(
            launcher_servicer.ModelLauncherServicer(self.launcher),
            model_launcher_pb2_grpc.add_ModelLauncherServiceServicer_to_server,
            name=launcher_servicer.SERVICE_NAME,
        )
        await self._server.start()
        self._server.set_serving(launcher_servicer.SERVICE_NAME, serving=True)
        self._running = asyncio.create_task(self.launcher.run())
        for name in self._asked_at_start:
            self.launcher.ask(name)

    @property
    def _asked_at_start(self) -> list[str]:
        names = [one.name for one in self._models]
        count = {"none": 0, "first": 1, "all": len(names)}[self._settings.models_loaded]
        return [name for name in names if name in names[:count] or name in self._settings.keep_warm]

    async def until_serving(self) -> None:
        """Shows progress; returns when the router is there, and the models that are loaded at the
        start are, or cannot be. Raises ServiceDied."""
        assert self.launcher is not None, "launched"
        ready = asyncio.ensure_future(self.launcher.until_ready(self._asked_at_start))
        watching = asyncio.ensure_future(self.attend())
        async with self._display.refreshed():
            try:
                await asyncio.wait({ready, watching}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    self.kill()  # no request runs yet, so nothing drains
                    watching.result()
            finally:
                for task in (ready, watching):
                    task.cancel()
                await asyncio.gather(ready, watching, return_exceptions=True)

    async def attend(self) -> None:
        """Never returns; raises ServiceDied when the router has ended."""
        assert self._router is not None and self._running is not None, "watched"
        await first_fault(died(self._router), _until_fault(self._running))

    async def stop(self) -> None:
        """Ends the router, which drains, then the models, then this process's server."""
        if self._router:
            await self._router.end(within_s=self._settings.drain_timeout + END_S)
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self.launcher is not None:
            await self.launcher.stop()
        if self._server is not None:
            await self._server.drain(grace_s=0.0)
        for addresses in self._of_models.values():
            addresses.close()
        self._reserved.close()
        self.addresses.close()

    def kill(self) -> None:
        """Ends the processes at once."""
        if self.launcher is not None:
            self.launcher.kill()
        if self._router:
            self._router.send(signal.SIGKILL)


async def _until_fault(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


def _room(settings: ServeCommandSettings) -> Needs:
    """Returns the memory of all models together: RAM, and all that the GPUs have."""
    if settings.models_memory is not None:
        return Needs(int(settings.models_memory * GIB), gpu_share=1.0)
    free = available_ram()
    return Needs(max(0, free - max(GIB, free // 10)), gpu_share=1.0)


def _is_on_gpu(settings: ServeSettings) -> bool:
    return not settings.simulate and (settings.device == "cuda" or may_have_gpu(settings))


def _within(settings: ServeSettings, room: Needs) -> ServeSettings:
    """Returns settings with the pools that a worker would have if just the room were free."""
    if settings.simulate or _is_on_gpu(settings):
        return settings
    pools = {
        "kv_cache_memory": cpu_cache_bytes(room.num_bytes) / GIB,
        "swap_space": cpu_swap_bytes(room.num_bytes) / GIB,
    }
    missing = {name: size for name, size in pools.items() if getattr(settings, name) is None}
    return settings.model_copy(update=missing)


def _pool_bytes(settings: ServeSettings) -> int:
    if settings.simulate:
        return 0
    in_ram = 0 if _is_on_gpu(settings) else settings.kv_cache_bytes or 0
    return settings.workers * (in_ram + (settings.swap_space_bytes or 0))


def _needs(settings: ServeSettings, listed: ListedModel) -> Needs:
    """Returns the estimate of what a model takes, which holds until its first start."""
    if settings.simulate:
        return Needs(settings.workers * SIMULATED_BYTES)
    weights = 0 if listed.gpu_share else listed.facts.weights_bytes
    num_bytes = settings.workers * (weights + WORKER_BYTES) + listed.pool_bytes
    return Needs(num_bytes, listed.gpu_share)


def _facts(settings: ServeSettings) -> ModelFacts:
    """Returns what the files tell. Raises the exceptions of `check_opening`, and ModelError for a
    model on the hub that has not been fetched."""
    if settings.simulate:
        pooling = settings.simulated_pooling and SIMULATED_POOLING[settings.simulated_pooling]
        length = settings.max_model_len or SimulatedConfig().max_model_len
        return ModelFacts(
            architecture="simulated",
            task=pooling.task if pooling else "generate",
            max_model_len=length,
            file_bytes=0,
            weights_bytes=0,
        )
    facts = check_opening(settings)
    if facts is None:
        raise ModelError(
            f"{settings.model} has not been fetched, which would take longer than a request waits;"
            f" `signalbox pull {settings.model}` fetches it"
        )
    return facts

"""Runs one service, or the whole stack, in this process; imports a service's code only here."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from contract.sampling_defaults import SamplingDefaults
from contract.startup import ReportProgress, StartupProgress
from gpu_worker.batch.runner_protocol import Runner
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig
from gpu_worker.generation_fields import default_params
from gpu_worker.worker_settings import WorkerSettings
from router.config import RouterConfig, RouterSettings
from rpc.settings.service_settings import Settings, TelemetrySettings
from rpc.telemetry import tracing
from scheduler_svc.config import SchedulerConfig, SchedulerSettings
from signalbox.settings.serve_settings import DemoSettings, ServeSettings
from signalbox.stack.child_processes import SERVING, STARTING, announce, has_listener
from signalbox.startup_display import log_progress
from signalbox.version import VERSION

logger = logging.getLogger(__name__)

_LIMITS = ("max_model_len", "block_size", "max_num_seqs", "max_num_batched_tokens")


def run_stack(settings: ServeSettings) -> None:
    from signalbox.stack.local_stack import serve

    asyncio.run(serve(settings))


def run_demo(settings: ServeSettings) -> None:
    from signalbox.commands.demo import run

    asyncio.run(run(settings))


def run_router(settings: RouterSettings) -> None:
    from router.main import run

    _configure_tracing("router", settings)
    config = RouterConfig(**dict(settings), version=VERSION)
    asyncio.run(run(config, on_serving=partial(announce, SERVING)))


def run_scheduler(settings: SchedulerSettings) -> None:
    from scheduler_svc.main import run

    _configure_tracing("scheduler", settings)
    asyncio.run(run(SchedulerConfig(**dict(settings))))


def run_worker(settings: WorkerSettings) -> None:
    from gpu_worker.main import run
    from gpu_worker.startup_client import Startup
    from signalbox.stack.model_check import check_model

    if not has_listener():  # else the parent has done so
        check_model(settings)

    startup = Startup(_announce_progress if has_listener() else log_progress())
    if settings.simulate:
        make_runner = _simulated_runner(settings)
    else:
        make_runner = _model_runner(settings, startup.set)
    _configure_tracing("worker", settings)
    asyncio.run(run(make_runner, settings, startup))


def _announce_progress(progress: StartupProgress) -> None:
    announce(STARTING, f"{progress.phase.name} {progress.num_done} {progress.num_total}")


def _simulated_runner(settings: WorkerSettings) -> Callable[[], Runner]:
    from gpu_worker.simulated.simulated_runner import SimulatedConfig, SimulatedRunner

    limits = {name: value for name in _LIMITS if (value := getattr(settings, name)) is not None}
    return partial(
        SimulatedRunner,
        SimulatedConfig(
            name=settings.served_name or "simulated",
            num_gpu_blocks=settings.simulated_gpu_blocks,
            num_cpu_blocks=settings.simulated_cpu_blocks,
            step_ns=int(settings.simulated_step_ms * 1e6),
            token_ns=int(settings.simulated_token_us * 1e3),
            sampling_defaults=SamplingDefaults(
                override=default_params(settings.generation_override)
            ),
            **limits,
        ),
    )


def _model_runner(settings: WorkerSettings, progress: ReportProgress) -> Callable[[], Runner]:
    from gpu_worker.main import end_at_once

    make = partial(
        _load_model,
        settings.part(ModelConfig),
        settings.part(CacheConfig),
        tensor_parallel_size=settings.tensor_parallel_size,
        device_config=settings.part(DeviceConfig),
        progress=progress,
        on_lost=end_at_once,
    )
    logger.info("loading %s", settings.model)
    return make


def _load_model(*args: Any, progress: ReportProgress, **options: Any) -> Runner:
    """Calls `make_runner`; imports it on the thread that loads the model."""
    try:
        from gpu_worker.runner_factory import make_runner  # may import torch: seconds
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"a worker with a model needs {error.name}, which is not installed; "
            "pip install 'signalbox-serving[cpu]'"
        ) from error
    return make_runner(*args, progress=progress, **options)


def _configure_tracing(service: str, settings: TelemetrySettings) -> None:
    tracing.configure(service_name=f"signalbox-{service}", exporter=settings.trace_exporter)


SERVICES: dict[str, tuple[type[Settings], Callable[[Any], None]]] = {
    "serve": (ServeSettings, run_stack),
    "demo": (DemoSettings, run_demo),
    "router": (RouterSettings, run_router),
    "scheduler": (SchedulerSettings, run_scheduler),
    "worker": (WorkerSettings, run_worker),
}
"""Settings class and function of each command that runs services."""

"""Runs one service, or the whole stack, in this process; imports a service's code only here.

Each function imports what its command needs: the three processes of a local stack start at once,
often on two cores.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from signalbox.stack.processes.child_processes import (
    SERVING,
    STARTING,
    announce,
    has_listener,
    may_fork,
)
from signalbox.version import VERSION
from signalbox_contract.startup import ReportProgress, StartupProgress

if TYPE_CHECKING:
    from signalbox.settings.serve_settings import ServeCommandSettings, ServeSettings
    from signalbox_router.config import RouterSettings
    from signalbox_rpc.settings.service_settings import Settings, TelemetrySettings
    from signalbox_scheduler.config import SchedulerSettings
    from signalbox_worker.runner.ranks.rank_network import RankNetwork
    from signalbox_worker.runner.runner import Runner
    from signalbox_worker.service.worker_settings import EngineSettings, WorkerSettings

logger = logging.getLogger(__name__)

_LIMITS = ("max_model_len", "block_size", "max_num_seqs", "max_num_batched_tokens")


def run_stack(settings: "ServeCommandSettings") -> None:
    fork = may_fork()
    from signalbox.stack.local_stack import LocalStack, serve

    if settings.serves_several:
        _run_models(settings, fork=fork)
        return
    stack = LocalStack(_with_own_name(settings))
    stack.launch(fork=fork)
    asyncio.run(serve(stack))


def _run_models(settings: "ServeCommandSettings", *, fork: bool) -> None:
    from signalbox.stack.local_stack import serve
    from signalbox.stack.models.model_list import named_models
    from signalbox.stack.models_stack import ModelsStack

    models = named_models(settings, partial(logger.warning, "%s"))
    stack = ModelsStack(settings, models)
    stack.launch(fork=fork)
    asyncio.run(serve(stack))


def _with_own_name(settings: "ServeCommandSettings") -> "ServeCommandSettings":
    """Returns the settings of NAME=MODEL as those of a model with another name."""
    from signalbox.stack.models.model_list import split_name

    name, model = split_name(settings.model)
    named = {"model": model, "served_model_name": (name,)} if name else {}
    return settings.model_copy(update=named)


def run_demo(settings: "ServeSettings") -> None:
    fork = may_fork()
    from signalbox.stack.demo import run

    run(settings, fork=fork)


def run_router(settings: "RouterSettings") -> None:
    from signalbox_router.config import RouterConfig
    from signalbox_router.main import run

    _configure_tracing("router", settings)
    config = RouterConfig(**dict(settings), version=VERSION)
    asyncio.run(run(config, on_serving=partial(announce, SERVING)))


def run_scheduler(settings: "SchedulerSettings") -> None:
    from signalbox_scheduler.config import SchedulerConfig
    from signalbox_scheduler.main import run

    _configure_tracing("scheduler", settings)
    config = SchedulerConfig(**dict(settings))
    asyncio.run(run(config, on_serving=partial(announce, SERVING)))


def run_worker(settings: "WorkerSettings") -> None:
    if settings.is_on_ray:
        _run_on_ray(settings)
        return
    from signalbox.stack.processes.startup_display import log_progress
    from signalbox_router.prompt.tokenization.tokenizer_settings import try_chat_template
    from signalbox_worker.main import run
    from signalbox_worker.service.startup_client import Startup

    network = None
    if settings.placement == "environment":
        network = _join_from_environment(settings)
        startup = Startup(log_progress())
    elif has_listener():  # the parent has checked the model
        startup = Startup(_announce_progress)
    else:
        from signalbox.stack.model_check import check_model

        check_model(settings)
        startup = Startup(log_progress())
    for notice in settings.speculation_notices:
        logger.info("%s", notice)
    if settings.simulate:
        make_runner = simulated_runner(settings)
    else:
        make_runner = _model_runner(settings, startup.set, network)
    _configure_tracing("worker", settings)
    asyncio.run(run(make_runner, settings, startup, try_files=try_chat_template))


def _run_on_ray(settings: "WorkerSettings") -> None:
    from signalbox_worker.missing_packages import require_ray

    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # each rank's lines are shown
    require_ray()
    from signalbox.stack.placement.ray_worker import run

    run(settings)


def _join_from_environment(settings: "WorkerSettings") -> "RankNetwork | None":
    """Returns the network of rank 0, or None if it is the only rank; obeys it as another rank."""
    from signalbox_worker.runner.ranks.rank_network import RankNetwork, read_place

    place, size = read_place(os.environ), settings.parallel.num_ranks
    if place.size != size:
        raise ValueError(
            f"{place.launcher} has started {place.size} ranks, but tensor_parallel_size times"
            f" pipeline_parallel_size is {size}; start as many"
        )
    if size == 1:
        return None
    network = RankNetwork.of(
        place, host=settings.rank_host, port=settings.rank_port, tls=settings.tls
    )
    if place.rank:
        from signalbox_worker.runner.ranks.follower_process import follow
        from signalbox_worker.runner.ranks.rank_status import RankStatus
        from signalbox_worker.runner.ranks.service.rank_messages import Start

        status = RankStatus(
            place.rank,
            local_rank=place.local_rank,
            host=settings.host,
            port=settings.port,
            metrics=settings.metrics,
            tls=settings.tls,
        )
        follow(place.rank, network, Start.of(settings.runner_config), status)
    return network


def _announce_progress(progress: StartupProgress) -> None:
    announce(STARTING, f"{progress.phase.name} {progress.num_done} {progress.num_total}")


def simulated_runner(settings: "EngineSettings") -> "Callable[[], Runner]":
    """Returns a function that makes the runner of a simulated model."""
    from signalbox_contract.sampling_defaults import SamplingDefaults
    from signalbox_worker.files.adapters.peft_adapter import describe_adapter
    from signalbox_worker.generation_fields import default_params
    from signalbox_worker.runner.simulated.group_option import groups_of
    from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
    from signalbox_worker.runner.simulated.simulated_pooler import SIMULATED_POOLING
    from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner

    limits = {name: value for name in _LIMITS if (value := getattr(settings, name)) is not None}
    parallel = settings.parallel
    return partial(
        SimulatedRunner,
        SimulatedConfig(
            name=settings.served_name or "simulated",
            num_gpu_blocks=settings.simulated_gpu_blocks,
            num_cpu_blocks=settings.simulated_cpu_blocks,
            num_store_blocks=settings.simulated_store_blocks,
            groups=groups_of(settings.simulated_groups),
            step_ns=int(settings.simulated_step_ms * 1e6),
            token_ns=int(settings.simulated_token_us * 1e3),
            stages=parallel.layer_partition or (1,) * parallel.pipeline_parallel_size,
            adapters=tuple(
                describe_adapter(name, Path(path)) for name, path in sorted(settings.adapters)
            ),
            sampling_defaults=SamplingDefaults(
                override=default_params(settings.generation_override)
            ),
            speculation=settings.speculation_config,
            pooling=settings.simulated_pooling and SIMULATED_POOLING[settings.simulated_pooling],
            **limits,
        ),
    )


def _model_runner(
    settings: "WorkerSettings", progress: ReportProgress, network: "RankNetwork | None"
) -> "Callable[[], Runner]":
    from signalbox_worker.main import end_at_once

    make = partial(
        _load_model,
        settings.runner_config,
        progress=progress,
        on_lost=end_at_once,
        network=network,
    )
    logger.info("loading %s", settings.model)
    return make


def _load_model(*args: Any, progress: ReportProgress, **options: Any) -> "Runner":
    """Calls `make_runner`; imports it on the thread that loads the model."""
    from signalbox_worker.service.runner_factory import make_runner  # may import torch: seconds

    return make_runner(*args, progress=progress, **options)


def _configure_tracing(name: str, settings: "TelemetrySettings") -> None:
    from signalbox_rpc.telemetry import tracing

    tracing.configure(service_name=f"signalbox-{name}", exporter=settings.trace_exporter)


def service(command: str) -> "tuple[type[Settings], Callable[[Any], None]]":
    """Returns the settings class and the function of one of SERVICES."""
    match command:
        case "router":
            from signalbox_router.config import RouterSettings

            return RouterSettings, run_router
        case "scheduler":
            from signalbox_scheduler.config import SchedulerSettings

            return SchedulerSettings, run_scheduler
        case "worker":
            from signalbox_worker.service.worker_settings import WorkerSettings

            return WorkerSettings, run_worker
    from signalbox.settings.serve_settings import DemoSettings, ServeCommandSettings

    return (DemoSettings, run_demo) if command == "demo" else (ServeCommandSettings, run_stack)

"""Runs one worker: load, listen, register, serve until signalled, drain."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from signalbox_contract.cache_groups import describe_groups, num_tokens_in
from signalbox_protos.worker.v1 import worker_pb2_grpc
from signalbox_rpc.interceptors.peer_roles import OPERATOR, SCHEDULER, WORKER
from signalbox_rpc.interceptors.write_timeout import SlowClientInterceptor
from signalbox_rpc.lifetime.parent import leave
from signalbox_rpc.metrics.serving_metrics import serving_metrics
from signalbox_rpc.transport.listening_ports import (
    METRICS_REMEDY,
    UNSPECIFIED_HOSTS,
    Endpoint,
    join_address,
)
from signalbox_rpc.transport.server import INTERNAL_MAX_RECEIVE_BYTES, Server
from signalbox_rpc.transport.shutdown import run_until_signalled
from signalbox_rpc.transport.tls import TlsConfig, check_files
from signalbox_worker.device.device_errors import exit_message
from signalbox_worker.runner.runner import Runner
from signalbox_worker.service.registration_client import HAND_OVER_S, Registration
from signalbox_worker.service.servicer import SERVICE_NAME, WorkerServicer
from signalbox_worker.service.startup_client import Startup, reporting
from signalbox_worker.service.worker import Worker
from signalbox_worker.service.worker_settings import WorkerSettings

logger = logging.getLogger(__name__)

READ_BLOCKS = f"/{SERVICE_NAME}/ReadBlocks"
CALLERS = {
    f"/{SERVICE_NAME}/": (SCHEDULER,),
    f"/{SERVICE_NAME}/GetWorkerInfo": (SCHEDULER, OPERATOR),
    f"/{SERVICE_NAME}/Profile": (OPERATOR,),
    READ_BLOCKS: (WORKER,),
}
READ_STALL_S = 5.0
"""Longest that a worker which reads blocks may take nothing while a part waits."""


async def run(
    make_runner: Callable[[], Runner],
    settings: WorkerSettings,
    startup: Startup | None = None,
    *,
    try_files: Callable[[Mapping[str, bytes]], None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        make_runner: called on the execution thread; loads the model.
        startup: what loading reports to; the scheduler is told until it has accepted the worker.
        try_files: called on a thread with the tokenizer's files; warns of what cannot be used.

    Raises RegistrationRefused, BindError, TlsError, DeviceLost, or whatever loading the model
    raises.
    """
    host, tls, metrics = settings.host, settings.tls, settings.metrics
    _check_listening(settings)  # before the model is loaded, which may take minutes
    async with reporting(startup or Startup(), settings.scheduler, tls=tls) as end_reports:
        worker = await Worker.load(
            make_runner,
            grammar_bytes=settings.grammar_memory << 20,
            adapter_dir=settings.adapter_dir,
            tls=tls,
        )
        server = make_server(worker, host=host, port=settings.port, tls=tls)
        try:
            if try_files is not None:
                asyncio.get_running_loop().run_in_executor(None, try_files, worker.tokenizer_files)
            bound_port = await server.start()
            server.set_serving(SERVICE_NAME, serving=True)
            _log_ready(worker, server)
            registration = _registration(worker, settings, bound_port, on_accepted=end_reports)
            async with serving_metrics(metrics, worker.samples, host=host, tls=tls):
                await _serve(server, registration, worker, grace_s=settings.drain_timeout)
            worker.close()
        except BaseException as error:
            await server.drain(grace_s=0.0)  # if it is not, such as where metrics cannot be shown
            worker.close(f"rank 0 ends: {error}")
            raise


def _registration(
    worker: Worker, settings: WorkerSettings, bound_port: int, *, on_accepted: Callable[[], object]
) -> Registration:
    return Registration(
        worker=worker,
        scheduler_address=settings.scheduler,
        advertised_address=advertised_address(
            host=settings.host, port=bound_port, advertise=settings.advertise
        ),
        tls=settings.tls,
        on_accepted=on_accepted,
        role=settings.role,
    )


def _check_listening(settings: WorkerSettings) -> None:
    """Raises BindError or TlsError unless the ports may be opened, with these certificates."""
    check_files(settings.tls)
    endpoint = Endpoint(host=settings.host, port=settings.port, tls=settings.tls)
    endpoint.check(names_callers=True)
    if settings.metrics.port:
        of_metrics = replace(endpoint, port=settings.metrics.port, remedy=METRICS_REMEDY)
        of_metrics.check(names_callers=True)


def make_server(worker: Worker, *, host: str, port: int, tls: TlsConfig) -> Server:
    """Returns the server of a worker, which does not listen yet."""
    server = Server(
        Endpoint(host=host, port=port, tls=tls),
        max_receive_bytes=INTERNAL_MAX_RECEIVE_BYTES,
        callers=CALLERS,
        interceptors=[SlowClientInterceptor(READ_STALL_S, methods={READ_BLOCKS})],
    )
    add = worker_pb2_grpc.add_WorkerServiceServicer_to_server
    server.add(WorkerServicer(worker), add, name=SERVICE_NAME)
    return server


async def _serve(
    server: Server, registration: Registration, worker: Worker, *, grace_s: float
) -> None:
    """Serves until signalled, or until the scheduler refuses the worker or its device is lost."""
    drain = partial(registration.drain, timeout_s=grace_s)
    serving = asyncio.create_task(
        run_until_signalled(server, grace_s=grace_s + HAND_OVER_S, on_drain=drain)
    )
    registering = asyncio.create_task(registration.run())
    losing = asyncio.create_task(worker.until_lost())
    try:
        await asyncio.wait({serving, registering, losing}, return_when=asyncio.FIRST_COMPLETED)
        if losing.done():
            losing.result()  # raises
        if not serving.done():
            await registering  # raises if refused; returns once drained
            if not registration.is_draining:  # it was an operator who asked the scheduler for that
                return
        await serving
    finally:
        serving.cancel()
        registering.cancel()
        losing.cancel()
        with contextlib.suppress(Exception):
            await server.drain(grace_s=0.0)


def end_at_once(reason: str) -> None:
    """Ends this process, which can compute nothing more, whatever it waits for; on any thread.

    The scheduler sees its lease end and goes on elsewhere.
    """
    logger.critical(exit_message(reason))
    logging.shutdown()
    leave(1)


def advertised_address(*, host: str, port: int, advertise: str | None) -> str:
    """Returns the "host:port" to register; no host stands for where the registration comes from."""
    if advertise is None:
        return f":{port}" if host in UNSPECIFIED_HOSTS else join_address(host, port)
    bare_ipv6 = advertise.count(":") > 1 and not advertise.startswith("[")
    has_port = not bare_ipv6 and not advertise.endswith("]") and ":" in advertise
    return advertise if has_port else join_address(advertise.strip("[]"), port)


def _log_ready(worker: Worker, server: Server) -> None:
    capacity = worker.capacity
    tokens = partial(num_tokens_in, groups=capacity.groups, block_size=capacity.block_size)
    logger.info(
        "worker ready: %(model)s (%(architecture)s, %(dtype)s, ranks: %(ranks)d) on"
        " %(address)s, KV cache of %(kv_cache_tokens)d tokens, swap space of"
        " %(swap_space_tokens)d, in blocks of %(block_size)d (%(groups)s)",
        {
            "model": worker.model.name,
            "architecture": worker.model.architecture,
            "dtype": worker.model.dtype,
            "ranks": capacity.tensor_parallel_size * capacity.pipeline_parallel_size,
            "address": server.address,
            "kv_cache_tokens": tokens(capacity.num_gpu_blocks),
            "swap_space_tokens": tokens(capacity.num_cpu_blocks),
            "block_size": capacity.block_size,
            "groups": describe_groups(capacity.groups),
        },
    )

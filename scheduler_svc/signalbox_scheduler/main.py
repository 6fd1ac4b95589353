"""The scheduler process: both services on one port."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from signalbox_rpc.interceptors.peer_roles import OPERATOR, ROUTER, WORKER
from signalbox_rpc.metrics.serving_metrics import serving_metrics
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.server import INTERNAL_MAX_RECEIVE_BYTES, Server
from signalbox_rpc.transport.shutdown import run_until_signalled
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.insight.recorder import UNRECORDED, InputRecorder
from signalbox_scheduler.service.registry_servicer import WorkerRegistryServicer
from signalbox_scheduler.service.replay.recording_codec import FileRecorder
from signalbox_scheduler.service.reports import metrics
from signalbox_scheduler.service.reports.stats_log import StatsLog
from signalbox_scheduler.service.scheduler_servicer import SchedulerServicer
from signalbox_scheduler.workers.adapters.cluster_adapters import ClusterAdapters
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.factory import make_cluster

logger = logging.getLogger(__name__)

SCHEDULER_SERVICE = "signalbox.scheduler.v1.SchedulerService"
REGISTRY_SERVICE = "signalbox.scheduler.v1.WorkerRegistryService"

CALLERS = {
    f"/{SCHEDULER_SERVICE}/": (OPERATOR,),
    f"/{SCHEDULER_SERVICE}/Connect": (ROUTER,),
    f"/{SCHEDULER_SERVICE}/LoadAdapter": (ROUTER, OPERATOR),
    f"/{SCHEDULER_SERVICE}/UnloadAdapter": (ROUTER, OPERATOR),
    f"/{SCHEDULER_SERVICE}/Explain": (ROUTER, OPERATOR),
    f"/{SCHEDULER_SERVICE}/GetModel": (ROUTER, OPERATOR),
    f"/{SCHEDULER_SERVICE}/GetStats": (ROUTER, OPERATOR),
    f"/{SCHEDULER_SERVICE}/GetTokenizer": (ROUTER,),
    f"/{SCHEDULER_SERVICE}/Watch": (ROUTER, OPERATOR),
    f"/{REGISTRY_SERVICE}/": (WORKER,),
}

TICK_S = 0.05
IDLE_TICK_S = 0.25
"""Interval while requests live but none has a deadline."""


async def run(
    config: SchedulerConfig, *, on_serving: Callable[[str], None] = lambda _name: None
) -> None:
    """Serves until a signal. SchedulerService is healthy while there is a worker.

    Args:
        on_serving: called with the model's name whenever serving begins.
    """
    async with serving(config) as (server, cluster):
        cluster.watchers[_Announcer(cluster, on_serving)] = None
        logger.info("listening on %s; waiting for a worker", server.address)
        await run_until_signalled(
            server, grace_s=config.drain_timeout, on_drain=lambda: _drain(server, cluster)
        )


@contextlib.asynccontextmanager
async def serving(config: SchedulerConfig) -> AsyncIterator[tuple[Server, Cluster]]:
    """A started scheduler, for as long as the context lasts."""
    recorder: InputRecorder = UNRECORDED
    if config.recording_path:
        recorder = FileRecorder(config, config.recording_path, now=time.monotonic())
    cluster = make_cluster(config, clock=recorder.clock)
    adapters = ClusterAdapters(cluster, recorder)
    server = Server(
        Endpoint(host=config.host, port=config.port, tls=config.tls),
        reflection=config.reflection,
        max_receive_bytes=INTERNAL_MAX_RECEIVE_BYTES,
        callers=CALLERS,
    )
    server.add(
        SchedulerServicer(
            cluster,
            config,
            recorder,
            adapters=adapters,
            is_draining=lambda: not server.is_serving(REGISTRY_SERVICE),  # else it always does
        ),
        pb_grpc.add_SchedulerServiceServicer_to_server,
        name=SCHEDULER_SERVICE,
    )
    server.add(
        WorkerRegistryServicer(cluster, config, recorder, adapters=adapters),
        pb_grpc.add_WorkerRegistryServiceServicer_to_server,
        name=REGISTRY_SERVICE,
    )
    await server.start()
    server.set_serving(REGISTRY_SERVICE, serving=True)
    cluster.watchers[partial(_set_health, server, cluster)] = None
    ticker = asyncio.create_task(_tick(cluster, recorder))
    shown = serving_metrics(
        config.metrics, partial(metrics.samples, cluster), host=config.host, tls=config.tls
    )
    stats = asyncio.create_task(_log_stats(cluster, config.log_stats_interval))
    try:
        async with shown:
            yield server, cluster
    finally:
        ticker.cancel()
        stats.cancel()
        await adapters.close()
        await server.drain(grace_s=0)
        recorder.close()


async def _log_stats(cluster: Cluster, interval_s: float) -> None:
    if interval_s:
        await StatsLog(cluster).run(interval_s)


class _Announcer:
    """Says when serving begins."""

    def __init__(self, cluster: Cluster, on_serving: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._on_serving = on_serving
        self._was_serving = False

    def __call__(self) -> None:
        model, is_serving = self._cluster.model, self._cluster.is_serving
        if is_serving and not self._was_serving and model is not None:
            self._on_serving(model.name)
        self._was_serving = is_serving


def _set_health(server: Server, cluster: Cluster) -> None:
    server.set_serving(SCHEDULER_SERVICE, serving=cluster.is_serving)


async def _tick(cluster: Cluster, recorder: InputRecorder) -> None:
    """Ends requests that are out of time; sleeps while there are none."""
    while True:
        await cluster.requests.wait_for_any()
        recorder.tick(time.monotonic())
        cluster.requests.expire()
        await asyncio.sleep(TICK_S if cluster.requests.has_deadlines else IDLE_TICK_S)


async def _drain(server: Server, cluster: Cluster) -> None:
    """Lets the requests end; then cuts the streams, which do not end by themselves."""
    cluster.tell_watchers()
    while len(cluster.requests):  # noqa: ASYNC110 (an event for this alone is not worth it)
        await asyncio.sleep(TICK_S)
    await server.drain(grace_s=0)

"""Answers health and shows the metrics of a rank but the first, where others start ranks.

Rank 0 is the worker, which does both itself. The server is on an event loop of a thread of its own,
so that it answers while the rank loads, computes or waits.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

from signalbox_rpc.metrics.registry import MetricsConfig
from signalbox_rpc.metrics.sample import Sample
from signalbox_rpc.metrics.serving_metrics import serving_metrics
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.server import Server
from signalbox_rpc.transport.tls import TlsConfig
from signalbox_worker.runner.ranks.rank_samples import of_rank
from signalbox_worker.runner.ranks.service.rank_servicer import SERVICE_NAME
from signalbox_worker.runner.ranks.stage import Stage


class RankStatus:
    """The health of a rank, which is not serving until `set_ready`, and its metrics."""

    def __init__(
        self,
        rank: int,
        *,
        local_rank: int,
        host: str,
        port: int,
        metrics: MetricsConfig,
        tls: TlsConfig,
    ) -> None:
        """Listens. Raises BindError or TlsError.

        Args:
            local_rank: is added to both ports, of which rank 0 has the ones that are configured.
        """
        self._rank = rank
        self._stages: dict[int, Stage] = {}
        """The stage that this rank computes, by its number; empty until it has loaded."""
        self._host, self._tls = host, tls
        self._port = port + local_rank if port else 0
        metrics_port = metrics.port + local_rank if metrics.port else metrics.port
        self._metrics = replace(metrics, port=metrics_port, socket=None)
        listening: Future[asyncio.AbstractEventLoop] = Future()
        threading.Thread(
            target=lambda: asyncio.run(self._serve(listening)), name="status", daemon=True
        ).start()
        self._loop = listening.result()

    def set_ready(self, stage: Stage, number: int) -> None:
        """Turns the health to serving, and shows the stage's times; safe from any thread."""
        self._stages[number] = stage
        self._loop.call_soon_threadsafe(
            lambda: self._server.set_serving(SERVICE_NAME, serving=True)
        )

    async def _serve(self, listening: "Future[asyncio.AbstractEventLoop]") -> None:
        """Serves until the process ends."""
        try:
            endpoint = Endpoint(host=self._host, port=self._port, tls=self._tls)
            self._server = Server(endpoint, callers={})
            self._server.set_serving(SERVICE_NAME, serving=False)
            await self._server.start()
            async with serving_metrics(
                self._metrics, self._samples, host=self._host, tls=self._tls
            ):
                listening.set_result(asyncio.get_running_loop())
                await asyncio.Event().wait()
        except Exception as error:
            listening.set_exception(error)

    def _samples(self) -> Iterator[Sample]:
        for number, stage in self._stages.items():
            yield from of_rank(stage.sums, rank=self._rank, stage=number)

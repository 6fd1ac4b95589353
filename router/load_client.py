"""Asks the scheduler how busy it is, for GetLoad; many who ask at once cost one call."""

import asyncio
import time
from typing import NamedTuple, cast

import grpc

from protos.scheduler.v1 import scheduler_pb2_grpc, stats_pb2
from rpc.client import open_channel
from rpc.errors import Unavailable
from rpc.tls import CLEAR, TlsConfig

MAX_AGE_S = 0.1
TIMEOUT_S = 2.0
RETRY_AFTER_S = 1.0


class ClusterLoad(NamedTuple):
    """Sums over the workers."""

    num_waiting: int = 0
    num_running: int = 0
    num_swapped: int = 0
    num_workers: int = 0
    num_kv_blocks: int = 0
    num_used_kv_blocks: int = 0


class LoadClient:
    """Keeps the last answer for MAX_AGE_S. Connects when it is first asked."""

    def __init__(self, address: str, *, tls: TlsConfig = CLEAR) -> None:
        self._address = address
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None
        self._asking = asyncio.Lock()
        self._load = ClusterLoad()
        self._fresh_until = 0.0

    async def fetch(self) -> ClusterLoad:
        """Raises Unavailable."""
        async with self._asking:
            if time.monotonic() >= self._fresh_until:
                self._load = _sum(await self._ask())
                self._fresh_until = time.monotonic() + MAX_AGE_S
            return self._load

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def _ask(self) -> stats_pb2.GetStatsResponse:
        if self._channel is None:
            self._channel = open_channel(self._address, tls=self._tls)
        stub = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)
        try:
            stats = await stub.GetStats(stats_pb2.GetStatsRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError:
            raise Unavailable("the scheduler does not say how busy it is", RETRY_AFTER_S) from None
        return cast(stats_pb2.GetStatsResponse, stats)


def _sum(stats: stats_pb2.GetStatsResponse) -> ClusterLoad:
    workers = stats.workers
    num_kv_blocks = sum(worker.num_gpu_blocks for worker in workers)
    return ClusterLoad(
        num_waiting=stats.num_requests_waiting,
        num_running=sum(worker.num_requests_running for worker in workers),
        num_swapped=sum(worker.num_requests_swapped for worker in workers),
        num_workers=len(workers),
        num_kv_blocks=num_kv_blocks,
        num_used_kv_blocks=num_kv_blocks - sum(worker.num_free_gpu_blocks for worker in workers),
    )

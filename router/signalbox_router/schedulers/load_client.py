"""Queries the schedulers for their load, for GetLoad; concurrent calls share one query to each."""

import asyncio
import time
from collections.abc import Iterable
from typing import NamedTuple

import grpc

from signalbox_contract.errors import Unavailable
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc, stats_pb2
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig

MAX_AGE_S = 0.1
TIMEOUT_S = 2.0
RETRY_AFTER_S = 1.0


class ClusterLoad(NamedTuple):
    """Sums over the workers of all schedulers that answer."""

    num_waiting: int = 0
    num_running: int = 0
    num_swapped: int = 0
    num_workers: int = 0
    num_kv_blocks: int = 0
    num_used_kv_blocks: int = 0


class LoadClient:
    """Keeps the last answer for MAX_AGE_S. Connects at the first query."""

    def __init__(self, addresses: Iterable[str], *, tls: TlsConfig = CLEAR) -> None:
        self._addresses = tuple(addresses)
        self._tls = tls
        self._channels: list[grpc.aio.Channel] = []
        self._asking = asyncio.Lock()
        self._load = ClusterLoad()
        self._fresh_until = 0.0

    async def fetch(self) -> ClusterLoad:
        """Returns the load. Raises Unavailable if no scheduler answers."""
        async with self._asking:
            if time.monotonic() >= self._fresh_until:
                self._load = _sum(await self._ask())
                self._fresh_until = time.monotonic() + MAX_AGE_S
            return self._load

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def _ask(self) -> list[stats_pb2.GetStatsResponse]:
        if not self._channels:
            self._channels = [open_channel(one, tls=self._tls) for one in self._addresses]
        stubs = [scheduler_pb2_grpc.SchedulerServiceStub(channel) for channel in self._channels]
        calls = [stub.GetStats(stats_pb2.GetStatsRequest(), timeout=TIMEOUT_S) for stub in stubs]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        found = [one for one in answers if isinstance(one, stats_pb2.GetStatsResponse)]
        if not found:
            raise Unavailable("no scheduler reports its load", RETRY_AFTER_S)
        return found


def _sum(stats: list[stats_pb2.GetStatsResponse]) -> ClusterLoad:
    workers = [worker for one in stats for worker in one.workers]
    num_kv_blocks = sum(worker.num_gpu_blocks for worker in workers)
    return ClusterLoad(
        num_waiting=sum(one.num_requests_waiting for one in stats),
        num_running=sum(worker.num_requests_running for worker in workers),
        num_swapped=sum(worker.num_requests_swapped for worker in workers),
        num_workers=len(workers),
        num_kv_blocks=num_kv_blocks,
        num_used_kv_blocks=num_kv_blocks - sum(worker.num_free_gpu_blocks for worker in workers),
    )

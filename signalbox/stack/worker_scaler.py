"""Changes how many workers `serve` keeps: as operators ask the scheduler, and by the load.

The launcher owns the number. It holds a stream to the scheduler, over which orders come and what it
waits for goes, for `top`.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import grpc

from protos.scheduler.v1 import scheduler_pb2, stats_pb2
from signalbox.client.scheduler_client import SchedulerClient
from signalbox.client.service_client import Refused, Unreachable
from signalbox.settings.worker_range import WorkerRange
from signalbox.stack.autoscaling import CALM_S, Demand, needed_workers, wanted_workers
from signalbox.stack.worker_supervisor import WorkerSupervisor

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks at the load, and before another try to reach the scheduler."""


Say = Callable[[scheduler_pb2.LaunchWorkersRequest], Awaitable[None]]


class Check(Protocol):
    """Takes the number of workers, and how many of them have taken their memory."""

    def __call__(self, num_workers: int, /, *, num_loaded: int) -> None: ...


class WorkerScaler:
    """The number of workers of one `signalbox serve`."""

    def __init__(
        self,
        workers: WorkerSupervisor,
        bounds: WorkerRange,
        *,
        placement: str,
        drain_s: float,
        check: Check = lambda *_, **__: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            drain_s: seconds that a worker which is taken away has to end.
            check: raises an error that says why so many workers cannot be kept.
        """
        self._workers = workers
        self.bounds = bounds
        self._placement = placement
        self._drain_s = drain_s
        self._check = check
        self._clock = clock
        self._changed_at = clock()
        self._demands: deque[Demand] = deque()

    def state(self) -> stats_pb2.LauncherState:
        return stats_pb2.LauncherState(
            placement=self._placement,
            min_workers=self.bounds.least,
            max_workers=self.bounds.most,
            num_wanted=self._workers.wanted,
            pending=[
                stats_pb2.PendingWorker(name=name, reason=reason)
                for name, reason in sorted(self._workers.pending.items())
            ],
        )

    async def run(self, client: SchedulerClient) -> None:
        """Follows orders and the load; never returns."""
        while True:
            with contextlib.suppress(Unreachable, Refused):
                await self._hold(client)
            await asyncio.sleep(LOOK_S)

    async def _hold(self, client: SchedulerClient) -> None:
        """Holds one stream to the scheduler. Raises Unreachable or Refused."""
        call, writing = client.stub.LaunchWorkers(), asyncio.Lock()

        async def say(request: scheduler_pb2.LaunchWorkersRequest) -> None:
            async with writing:  # a call takes one message at a time
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await call.write(request)  # the loop over the answers raises why it has ended

        await say(scheduler_pb2.LaunchWorkersRequest(state=self.state()))
        telling = asyncio.create_task(self._tell(say, client))
        try:
            async for order in client.answers(call):
                await say(await self.obey(order, await client.stats()))
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            call.cancel()

    async def _tell(self, say: Say, client: SchedulerClient) -> None:
        """Sends each change of the state, and looks at the load unless the number is fixed."""
        told = self.state()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self.bounds.is_fixed else LOOK_S):
                    await self._workers.changed.wait()
            self._workers.changed.clear()
            if not self.bounds.is_fixed:
                with contextlib.suppress(Unreachable, Refused):
                    self.follow(await client.stats())
            if (state := self.state()) != told:
                await say(scheduler_pb2.LaunchWorkersRequest(state=state))
                told = state

    async def obey(
        self, order: scheduler_pb2.LaunchWorkersResponse, stats: stats_pb2.GetStatsResponse
    ) -> scheduler_pb2.LaunchWorkersRequest:
        """Sets the bounds that an operator asks for; returns the answer to the scheduler."""
        bounds = WorkerRange(order.min_workers, order.max_workers)
        wanted = min(max(self._workers.wanted, bounds.least), bounds.most)
        refusal = ""
        try:
            if bounds.most > self.bounds.most:
                await asyncio.to_thread(
                    self._check, bounds.most, num_loaded=self._num_loaded(stats)
                )
        except (MemoryError, OSError, ValueError) as error:
            refusal = f"cannot keep {bounds} workers: {error}"
        else:
            logger.info("workers: %s instead of %s, as was asked", bounds, self.bounds)
            self.bounds = bounds
            self._resize(wanted, stats)
            self._workers.changed.set()
        return scheduler_pb2.LaunchWorkersRequest(
            state=self.state(), order=order.order, refusal=refusal
        )

    def follow(self, stats: stats_pb2.GetStatsResponse) -> None:
        """Keeps as many workers as the load needs, within the bounds."""
        now = self._clock()
        serving = [one for one in stats.workers if one.launched_as and not one.is_draining]
        needed = needed_workers(
            num_waiting=stats.num_requests_waiting,
            kv_usages=[_num_used(one) / one.num_gpu_blocks for one in serving],
        )
        self._demands.append(Demand(now, needed))
        while len(self._demands) > 1 and now - self._demands[1].at >= CALM_S:
            self._demands.popleft()
        wanted = wanted_workers(
            self._demands, self.bounds, wanted=self._workers.wanted, changed_at=self._changed_at
        )
        if wanted != self._workers.wanted:
            logger.info(
                "workers: %d instead of %d; %d requests wait, and %d workers are needed",
                *(wanted, self._workers.wanted, stats.num_requests_waiting, needed),
            )
            self._resize(wanted, stats)

    def _num_loaded(self, stats: stats_pb2.GetStatsResponse) -> int:
        serving = {one.launched_as for one in stats.workers}
        return len(serving.intersection(self._workers.names))

    def _resize(self, wanted: int, stats: stats_pb2.GetStatsResponse) -> None:
        if wanted != self._workers.wanted:
            self._changed_at = self._clock()
        self._workers.grow(wanted)
        while self._workers.wanted > wanted:
            name = least_to_move(self._workers.names, stats)
            logger.info("%s is taken away: it drains, and ends", name)
            self._workers.remove(name, within_s=self._drain_s)


def least_to_move(names: Sequence[str], stats: stats_pb2.GetStatsResponse) -> str:
    """Returns the worker with the fewest KV blocks in use; the last one of several.

    A worker that does not serve yet has none.
    """
    used = {one.launched_as: _num_used(one) for one in stats.workers}
    return min(reversed(names), key=lambda name: used.get(name, -1))


def _num_used(worker: stats_pb2.WorkerStats) -> int:
    return worker.num_gpu_blocks - worker.num_free_gpu_blocks

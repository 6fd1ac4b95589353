"""Tells the scheduler how many workers `serve` keeps, and what those that do not run wait for.

`signalbox top` shows it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from signalbox.client.scheduler_client import SchedulerClient
from signalbox.client.service_client import CallRefused, Unreachable
from signalbox.stack.processes.worker_supervisor import WorkerSupervisor
from signalbox_protos.scheduler.v1 import scheduler_pb2, stats_pb2

RETRY_S = 1.0
"""Seconds before another try to reach the scheduler."""


async def report_workers(
    workers: WorkerSupervisor, client: SchedulerClient, *, placement: str, num_workers: int
) -> NoReturn:
    """Holds a stream to the scheduler, over which each change goes; never returns."""

    def state() -> stats_pb2.LauncherState:
        pending = [
            stats_pb2.PendingWorker(name=name, reason=reason)
            for name, reason in sorted(workers.pending.items())
        ]
        return stats_pb2.LauncherState(
            placement=placement, num_workers=num_workers, pending=pending
        )

    while True:
        call = client.stub.ReportLauncher()
        telling = asyncio.create_task(_tell(call, workers, state))
        try:
            with contextlib.suppress(Unreachable, CallRefused):
                await client.answer(call)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            call.cancel()
        await asyncio.sleep(RETRY_S)


async def _tell(
    call: Any, workers: WorkerSupervisor, state: Callable[[], stats_pb2.LauncherState]
) -> None:
    told = None
    # What ends the call is raised where its answer is awaited.
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            workers.changed.clear()
            if (now := state()) != told:
                await call.write(scheduler_pb2.ReportLauncherRequest(state=now))
                told = now
            await workers.changed.wait()

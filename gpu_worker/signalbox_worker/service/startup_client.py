"""Reports the phases of a start to the scheduler, until the worker registers; see ReportStartup."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc

from signalbox_contract.startup import ReportProgress, StartupProgress, ignore_progress
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig

LOOK_S = 0.25
REPORT_S = 1.0
"""Most seconds between two reports; the scheduler counts a silent worker as lost."""
RETRY_S = 1.0


class Startup:
    """Progress of this worker's start: the loading thread sets it, the reports read it."""

    def __init__(self, on_progress: ReportProgress = ignore_progress) -> None:
        """`on_progress` is called with each report, on the thread that makes it."""
        self._on_progress = on_progress
        self.progress: StartupProgress | None = None
        """None before the first phase."""

    def set(self, progress: StartupProgress) -> None:
        """Satisfies `ReportProgress`."""
        self.progress = progress
        self._on_progress(progress)


@contextlib.asynccontextmanager
async def reporting(
    startup: Startup, scheduler_address: str, *, tls: TlsConfig = CLEAR
) -> AsyncIterator[Callable[[], object]]:
    """Reports while the context lasts; yields what ends the reports earlier. Raises TlsError.

    A scheduler that does not answer, or refuses, is tried again: what is wrong with it, or with
    this worker, is for the registration to say.
    """
    async with open_channel(scheduler_address, tls=tls) as channel:
        stub = scheduler_pb2_grpc.WorkerRegistryServiceStub(channel)
        task = asyncio.create_task(_report_again_and_again(startup, stub), name="startup reports")
        try:
            yield task.cancel
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _report_again_and_again(
    startup: Startup, stub: scheduler_pb2_grpc.WorkerRegistryServiceStub
) -> None:
    while True:
        try:
            await _report(startup, stub)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # an older scheduler
                return
        except asyncio.InvalidStateError:
            pass  # the call ended between two reports
        await asyncio.sleep(RETRY_S)


async def _report(startup: Startup, stub: scheduler_pb2_grpc.WorkerRegistryServiceStub) -> None:
    """Sends a report when the phase changes, and each second. Raises AioRpcError."""
    call = stub.ReportStartup()
    sent: StartupProgress | None = None
    waited_s = 0.0
    try:
        while True:
            progress = startup.progress
            is_new = sent is None or (progress is not None and progress.phase is not sent.phase)
            if progress is not None and (is_new or waited_s >= REPORT_S):
                await call.write(_request(progress))
                sent, waited_s = progress, 0.0
            await asyncio.sleep(LOOK_S)
            waited_s += LOOK_S
    finally:
        call.cancel()


def _request(progress: StartupProgress) -> pb.ReportStartupRequest:
    return pb.ReportStartupRequest(
        phase=progress.phase.value,  # type: ignore[arg-type]  # numbered alike
        num_done=progress.num_done,
        num_total=progress.num_total,
    )

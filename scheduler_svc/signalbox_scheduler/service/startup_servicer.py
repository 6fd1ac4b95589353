"""The half of WorkerRegistryService that reads what workers report while they load a model."""

import asyncio
from collections.abc import AsyncIterator

from signalbox_contract.errors import Aborted, InvalidArgument
from signalbox_contract.startup import StartupPhase, StartupProgress
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_rpc.limits.peer_timeout import wait_for_first
from signalbox_scheduler.workers.starting_workers import StartingWorkers

Reports = AsyncIterator[pb.ReportStartupRequest]

STARTUP_SILENCE_S = 10.0
"""A worker that starts says something each second, unless an import holds it up."""


async def read_reports(requests: Reports, starting: StartingWorkers) -> None:
    """Records what one worker reports, until its stream ends. Raises RpcError."""
    worker = None
    try:
        while (request := await _next_report(requests)) is not None:
            progress = _startup_progress(request)
            if worker is None:
                worker = starting.add(progress)
            else:
                starting.update(worker, progress)
    finally:
        if worker is not None:
            starting.remove(worker)


async def _next_report(
    requests: Reports,
) -> pb.ReportStartupRequest | None:
    """Returns None at the end of the stream. Raises Aborted after too long a silence."""
    message = asyncio.ensure_future(anext(requests, None))
    try:
        if not await wait_for_first(message, within_s=STARTUP_SILENCE_S):
            raise Aborted(f"no report within {STARTUP_SILENCE_S:g} s")
        return message.result()
    finally:
        message.cancel()


def _startup_progress(request: pb.ReportStartupRequest) -> StartupProgress:
    try:
        phase = StartupPhase(request.phase)
    except ValueError:
        raise InvalidArgument("phase", request.phase, "a known phase") from None
    try:
        return StartupProgress(phase, request.num_done, request.num_total)
    except ValueError:
        raise InvalidArgument("num_done", request.num_done, "at most num_total") from None

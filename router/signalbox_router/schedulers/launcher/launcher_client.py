"""The client of the launcher of this machine's models: watches it, and has it load and unload them.

It tells the launcher which models have requests, so that one that is to end waits for its last.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable

import grpc

from signalbox_contract.errors import RpcError, from_code
from signalbox_protos.operations.v1 import model_launcher_pb2 as pb
from signalbox_protos.operations.v1 import model_launcher_pb2_grpc
from signalbox_router.schedulers.launcher.launcher_codec import decode_model, encode_uses
from signalbox_router.schedulers.launcher.model_starts import (
    NO_TRACE,
    LauncherLost,
    ModelStarts,
    ModelUse,
    TraceContext,
)
from signalbox_rpc.interceptors.status import is_said, retry_after_s, words_of
from signalbox_rpc.transport.channel import open_channel

logger = logging.getLogger(__name__)

RETRY_S = 0.5
REPORT_INTERVAL_S = 0.1
"""Least seconds between two reports of use; the first change after a pause is told at once."""
LOAD_S, UNLOAD_S = 600.0, 600.0
"""Seconds that an operator's call waits."""


class LauncherClient:
    """One launcher of this machine, whose models are in the table of `starts`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.said = pb.WatchModelsResponse()
        """The launcher's last message."""
        self._lost = ""

    async def run(
        self,
        starts: ModelStarts,
        *,
        on_change: Callable[[], None],
        uses: Callable[[], Iterable[ModelUse]],
    ) -> None:
        """Watches the launcher until it is cancelled.

        Args:
            on_change: called when the table has changed; must not block.
            uses: returns the requests of this router for each of the launcher's models.
        """
        while True:
            try:
                async with open_channel(self.address) as channel:
                    stub = model_launcher_pb2_grpc.ModelLauncherServiceStub(channel)
                    await self._follow(stub, starts, on_change, uses)
            except grpc.aio.AioRpcError as error:
                reason = words_of(error)
                if reason != self._lost:
                    logger.warning("the launcher at %s does not answer: %s", self.address, reason)
                self._lost = reason
            await asyncio.sleep(RETRY_S)

    async def _follow(
        self,
        stub: model_launcher_pb2_grpc.ModelLauncherServiceStub,
        starts: ModelStarts,
        on_change: Callable[[], None],
        uses: Callable[[], Iterable[ModelUse]],
    ) -> None:
        """Takes over each table until the stream ends."""
        reporting: asyncio.Task[None] | None = None
        try:
            async for message in stub.WatchModels(pb.WatchModelsRequest()):
                self._lost = ""
                self.said = message
                models = [decode_model(one) for one in message.models]
                starts.launched.update(models, revision=message.revision)
                on_change()
                starts.revised.set()
                starts.used.set()
                if reporting is None:
                    reporting = asyncio.create_task(_report(stub, starts, uses))
        finally:
            if reporting is not None:
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)

    async def load(self, name: str, *, timeout_s: float, trace: TraceContext = NO_TRACE) -> None:
        """Returns when a model is loaded. Raises LauncherLost or RpcError."""
        await self._call("LoadModel", pb.LoadModelRequest(name=name), timeout_s, trace)

    async def unload(self, name: str) -> None:
        """Returns when a model's processes have ended. Raises LauncherLost or RpcError."""
        await self._call("UnloadModel", pb.UnloadModelRequest(name=name), UNLOAD_S, NO_TRACE)

    async def _call(
        self,
        method: str,
        request: pb.LoadModelRequest | pb.UnloadModelRequest,
        timeout_s: float,
        trace: TraceContext,
    ) -> None:
        """Calls the launcher on a connection of its own: such calls are few."""
        named = zip(("traceparent", "tracestate"), trace, strict=True)
        metadata = tuple((name, value) for name, value in named if value)
        try:
            async with open_channel(self.address) as channel:
                stub = model_launcher_pb2_grpc.ModelLauncherServiceStub(channel)
                await getattr(stub, method)(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from None


def _failure(error: grpc.aio.AioRpcError) -> RpcError:
    code: int = error.code().value[0]
    if is_said(error) or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return from_code(code, words_of(error), retry_after_s(error))
    return LauncherLost("the launcher of the models does not answer")


async def _report(
    stub: model_launcher_pb2_grpc.ModelLauncherServiceStub,
    starts: ModelStarts,
    uses: Callable[[], Iterable[ModelUse]],
) -> None:
    """Tells the launcher of the use of its models, until it is cancelled."""
    while True:
        call = stub.ReportUse()
        try:
            async for report in _reports(starts, uses):
                await call.write(report)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await asyncio.sleep(RETRY_S)
        finally:
            call.cancel()


async def _reports(
    starts: ModelStarts, uses: Callable[[], Iterable[ModelUse]]
) -> AsyncIterator[pb.ReportUseRequest]:
    """Yields a report whenever the use of the models, or the table, has changed."""
    last = None
    while True:
        starts.used.clear()
        starts.revised.clear()
        report = encode_uses(uses(), revision=starts.launched.revision)
        if report != last:
            yield report
            last = report
            with contextlib.suppress(TimeoutError):  # a new table is answered at once
                async with asyncio.timeout(REPORT_INTERVAL_S):
                    await starts.revised.wait()
        await starts.used.wait()

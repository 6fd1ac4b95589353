"""ModelLauncherService: routers ask for models, and say which they use."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from signalbox.stack.models.model_launcher import ModelLauncher, ModelStatus
from signalbox_contract.errors import ResourceExhausted
from signalbox_contract.model_state import ModelState
from signalbox_protos.operations.v1 import model_launcher_pb2 as pb
from signalbox_protos.operations.v1 import model_launcher_pb2_grpc as pb_grpc

SERVICE_NAME = "signalbox.operations.v1.ModelLauncherService"
MAX_WATCHERS = 16
RETRY_AFTER_S = 10.0

Context = grpc.aio.ServicerContext[Any, Any]


class ModelLauncherServicer(pb_grpc.ModelLauncherServiceServicer):
    """Decodes, asks the launcher, encodes."""

    def __init__(self, launcher: ModelLauncher) -> None:
        self._launcher = launcher
        self._watching: set[asyncio.Task[Any]] = set()

    async def WatchModels(
        self, request: pb.WatchModelsRequest, context: Context
    ) -> AsyncIterator[pb.WatchModelsResponse]:
        if len(self._watching) >= MAX_WATCHERS:
            raise ResourceExhausted(f"{MAX_WATCHERS} clients watch already", RETRY_AFTER_S)
        task = asyncio.current_task()
        assert task is not None
        self._watching.add(task)
        try:
            async for revision, statuses in self._launcher.statuses():
                models = [encode_status(one, self._launcher.now) for one in statuses]
                yield pb.WatchModelsResponse(models=models, revision=revision)
        finally:
            self._watching.discard(task)

    async def LoadModel(
        self, request: pb.LoadModelRequest, context: Context
    ) -> pb.LoadModelResponse:
        times = await self._launcher.load(request.name)
        return pb.LoadModelResponse(
            waited_ns=int(times.waited_s * 1e9), started_ns=int(times.started_s * 1e9)
        )

    async def UnloadModel(
        self, request: pb.UnloadModelRequest, context: Context
    ) -> pb.UnloadModelResponse:
        await self._launcher.unload(request.name)
        return pb.UnloadModelResponse()

    async def ReportUse(
        self, requests: AsyncIterator[pb.ReportUseRequest], context: Context
    ) -> pb.ReportUseResponse:
        router = self._launcher.join()
        try:
            async for request in requests:
                num_live = {use.name: use.num_live for use in request.uses}
                self._launcher.report(router, num_live, request.revision)
        finally:
            self._launcher.leave(router)
        return pb.ReportUseResponse()


def encode_status(status: ModelStatus, now: float) -> pb.LaunchedModel:
    """Returns the message of a model."""
    listed, facts = status.listed, status.listed.facts
    return pb.LaunchedModel(
        name=listed.name,
        other_names=listed.other_names,
        state=f"STATE_{status.state.name}",
        scheduler=listed.scheduler,
        task=facts.task,
        max_model_len=facts.max_model_len,
        architecture=facts.architecture,
        file_bytes=facts.file_bytes,
        memory_bytes=status.memory_bytes,
        reason=status.reason,
        retry_after_ns=_retry_after_ns(status, now),
        is_kept=status.is_kept,
        num_starts=status.num_starts,
        last_start_ns=int(status.start_s * 1e9),
    )


def _retry_after_ns(status: ModelStatus, now: float) -> int:
    if status.state is not ModelState.FAILED or not status.held_until:
        return 0
    return max(1, int((status.held_until - now) * 1e9))

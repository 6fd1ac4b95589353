"""A launcher whose models are fake schedulers: it loads and unloads them when a test lets it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc

from signalbox_contract.errors import RpcError
from signalbox_protos.operations.v1 import model_launcher_pb2 as pb
from signalbox_protos.operations.v1 import model_launcher_pb2_grpc
from tests.ports import free_port
from tests.router.fakes import FakeScheduler, refuse
from tests.waiting import EVENT_S

State = pb.LaunchedModel.State


class FakeLauncher(model_launcher_pb2_grpc.ModelLauncherServiceServicer):
    """Records what a router asks and reports."""

    def __init__(self, *schedulers: FakeScheduler) -> None:
        self.schedulers: Mapping[str, FakeScheduler] = {one.model_name: one for one in schedulers}
        for one in schedulers:
            one.port = free_port()
        self.models = {
            name: pb.LaunchedModel(
                name=name,
                state=State.STATE_UNLOADED,
                scheduler=f"127.0.0.1:{one.port}",
                task="generate" if one.pooling is None else "embed",
                max_model_len=one.max_model_len,
                architecture="LlamaForCausalLM",
            )
            for name, one in self.schedulers.items()
        }
        self.revision = 1
        self.asked: list[str] = []
        self.traces: list[str] = []
        """The traceparent of each call."""
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.refusal: RpcError | None = None
        self.num_calls = 0
        """Calls of LoadModel that have not ended."""
        self.uses = pb.ReportUseRequest()
        """The router's last report."""
        self.port = free_port()
        self._changed = asyncio.Condition()
        self._loading = asyncio.Lock()
        self._server: grpc.aio.Server | None = None

    @property
    def addresses(self) -> list[str]:
        return [one.scheduler for one in self.models.values()]

    async def start(self) -> str:
        options = [("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)]
        self._server = grpc.aio.server(options=options)
        model_launcher_pb2_grpc.add_ModelLauncherServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()
        return f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def set(self, name: str, **fields: Any) -> None:
        """Changes a model, and tells the router."""
        self.models[name].MergeFrom(pb.LaunchedModel(**fields))
        self.revision += 1
        await self._notify()

    async def load(self, name: str) -> None:
        async with self._loading:
            if self.models[name].state != State.STATE_LOADED:
                await self.schedulers[name].start()
                await self.set(name, state=State.STATE_LOADED)

    async def unload(self, name: str) -> None:
        """Drains a model and ends it, as the contract says; it is loaded again afterwards."""
        async with self._loading:
            await self.set(name, state=State.STATE_DRAINING)
            since = self.revision
            await self.wait_until(lambda: self.uses.revision >= since and not self.num_live(name))
            await self.schedulers[name].stop()
            await self.set(name, state=State.STATE_UNLOADED)

    def num_live(self, name: str) -> int:
        return sum(one.num_live for one in self.uses.uses if one.name == name)

    async def wait_until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(EVENT_S), self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def WatchModels(
        self, request: pb.WatchModelsRequest, context: Any
    ) -> AsyncIterator[pb.WatchModelsResponse]:
        seen = 0
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self.revision > seen)  # noqa: B023
                seen = self.revision
            yield pb.WatchModelsResponse(models=self.models.values(), revision=seen)

    async def LoadModel(self, request: pb.LoadModelRequest, context: Any) -> pb.LoadModelResponse:
        self.asked.append(request.name)
        self.traces.append(dict(context.invocation_metadata()).get("traceparent", ""))
        self.num_calls += 1
        try:
            await self._notify()
            if self.refusal is not None:
                await refuse(context, self.refusal)
            await self.may_load.wait()
            await self.load(request.name)
        finally:
            self.num_calls -= 1
        return pb.LoadModelResponse()

    async def UnloadModel(
        self, request: pb.UnloadModelRequest, context: Any
    ) -> pb.UnloadModelResponse:
        await self.unload(request.name)
        return pb.UnloadModelResponse()

    async def ReportUse(
        self, requests: AsyncIterator[pb.ReportUseRequest], context: Any
    ) -> pb.ReportUseResponse:
        async for request in requests:
            self.uses = request
            await self._notify()
        return pb.ReportUseResponse()

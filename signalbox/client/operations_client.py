"""Client of a router's calls for operators, for commands such as `ps` and `load`."""

from typing import cast

from signalbox.client.connection import PLAIN, Connection
from signalbox.client.service_client import TIMEOUT_S, ServiceClient
from signalbox_protos.operations.v1 import operations_pb2 as pb
from signalbox_protos.operations.v1 import operations_pb2_grpc


class OperationsClient(ServiceClient):
    """Calls a router as an operator. Failed calls raise Unreachable or CallRefused."""

    def __init__(self, address: str, how: Connection = PLAIN) -> None:
        super().__init__("router", operations_pb2_grpc.OperationsServiceStub, address, how)
        self._metadata = how.metadata

    async def models(self) -> list[pb.ModelStatus]:
        call = self.stub.ListModels(
            pb.ListModelsRequest(), timeout=TIMEOUT_S, metadata=self._metadata
        )
        return list(cast(pb.ListModelsResponse, await self.answer(call)).models)

    async def load(self, name: str) -> None:
        """Returns when a model is loaded; the router bounds the wait."""
        request = pb.OperationsServiceLoadModelRequest(name=name)
        await self.answer(self.stub.LoadModel(request, metadata=self._metadata))

    async def unload(self, name: str) -> None:
        """Returns when a model's processes have ended."""
        request = pb.OperationsServiceUnloadModelRequest(name=name)
        await self.answer(self.stub.UnloadModel(request, metadata=self._metadata))

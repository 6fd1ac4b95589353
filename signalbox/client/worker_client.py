"""Client of a worker's introspection calls, for commands such as `profile`."""

from collections.abc import AsyncIterator
from typing import cast

from signalbox.client.connection import PLAIN, Connection
from signalbox.client.service_client import TIMEOUT_S, ServiceClient
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc

EXPORT_TIMEOUT_S = 120.0
"""Seconds for a worker to write a long recording."""


class WorkerClient(ServiceClient):
    """Calls a worker."""

    def __init__(self, address: str, how: Connection = PLAIN) -> None:
        super().__init__("worker", worker_pb2_grpc.WorkerServiceStub, address, how)

    async def info(self) -> pb.GetWorkerInfoResponse:
        call = self.stub.GetWorkerInfo(pb.GetWorkerInfoRequest(), timeout=TIMEOUT_S)
        return cast(pb.GetWorkerInfoResponse, await self.answer(call))

    def profile(self, request: pb.ProfileRequest) -> AsyncIterator[pb.ProfileResponse]:
        timeout_s = request.duration_ns / 1e9 + EXPORT_TIMEOUT_S
        return self.answers(self.stub.Profile(request, timeout=timeout_s))

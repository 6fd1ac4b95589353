"""Client of a worker's introspection calls, for commands such as `profile`."""

from collections.abc import AsyncIterator
from typing import Any, Self, cast

import grpc

from protos.worker.v1 import worker_pb2 as pb
from protos.worker.v1 import worker_pb2_grpc
from signalbox.client.connection import PLAIN, Connection, dial
from signalbox.client.tls_probe import tls_hint

TIMEOUT_S = 10.0
EXPORT_TIMEOUT_S = 120.0
"""Seconds for a worker to write a long recording."""


class WorkerUnreachable(RuntimeError):
    """No worker answers in time; the message says so in one line."""


class WorkerRefuses(RuntimeError):
    """The worker refuses the call; the message gives the reason in one line."""


class WorkerClient:
    """Calls a worker. Failed calls raise WorkerUnreachable or WorkerRefuses."""

    def __init__(self, address: str, connection: Connection = PLAIN) -> None:
        self.address = address
        self._channel = dial(address, connection)
        self._uses_tls = connection.tls.ca is not None
        make_stub: Any = worker_pb2_grpc.WorkerServiceStub  # generated without types
        self._stub = make_stub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._channel.close()

    async def info(self) -> pb.GetWorkerInfoResponse:
        try:
            answer = await self._stub.GetWorkerInfo(pb.GetWorkerInfoRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        return cast(pb.GetWorkerInfoResponse, answer)

    async def profile(self, request: pb.ProfileRequest) -> AsyncIterator[pb.ProfileResponse]:
        timeout_s = request.duration_ns / 1e9 + EXPORT_TIMEOUT_S
        try:
            async for part in self._stub.Profile(request, timeout=timeout_s):
                yield part
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error

    def _failure(self, error: grpc.aio.AioRpcError) -> RuntimeError:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            hint = tls_hint(self.address, uses_tls=self._uses_tls)
            return WorkerUnreachable(f"no worker answers at {self.address}{hint}")
        return WorkerRefuses(error.details() or error.code().name)

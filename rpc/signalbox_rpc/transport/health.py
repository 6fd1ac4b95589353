"""The standard health service, with any number of watchers.

When a watcher leaves, the servicer of grpcio-health-checking drops the notifications of all other
watchers of the service, and it holds a lock while it writes to a slow watcher. Hence this servicer
of our own, on the same protos.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from signalbox_contract.errors import NotFound
from signalbox_rpc.interceptors.call_handlers import Context
from signalbox_rpc.transport.health_messages import LIST, HealthListRequest, HealthListResponse

SERVICE_NAME = "grpc.health.v1.Health"
OVERALL = ""

_Response = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers for each service by name, and for all of them under the empty name."""

    def __init__(self) -> None:
        self._serving: dict[str, bool] = {OVERALL: False}
        self._parts: dict[str, bool] = {}
        """Status of what has a name of its own and does not count in the overall one."""
        self._changed = asyncio.Event()
        self._closed = False

    def set(self, name: str, *, serving: bool) -> None:
        """Sets one service's status and the overall one, and wakes the watchers."""
        if self._closed:
            return
        self._serving[name] = serving
        services = [is_serving for name, is_serving in self._serving.items() if name != OVERALL]
        self._serving[OVERALL] = all(services)
        self._notify()

    def set_parts(self, parts: Mapping[str, bool]) -> None:
        """Sets the status of parts, such as models: the overall status does not depend on them.

        Parts that are left out have none any more; the name of a service stays the service's.
        """
        if not self._closed and parts != self._parts:
            self._parts = dict(parts)
            self._notify()

    def is_serving(self, name: str) -> bool:
        return self._serving[name]

    def close(self) -> None:
        """Sets every status to not serving, permanently."""
        self._closed = True
        self._serving = dict.fromkeys(self._serving, False)
        self._parts = dict.fromkeys(self._parts, False)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._parts | self._serving:
            raise NotFound(f"no service named {request.service[:100]!r} here")
        return _Response(status=self._status(request.service))

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        last_status = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != last_status:
                yield _Response(status=status)
            last_status = status
            await changed.wait()

    async def List(self, request: Message, context: Context) -> Any:
        answer: Any = HealthListResponse()
        for name in self._parts | self._serving:
            answer.statuses[name].status = self._status(name)
        return answer

    def _status(self, name: str) -> int:
        is_serving = (self._parts | self._serving).get(name)
        if is_serving is None:
            return int(_Response.SERVICE_UNKNOWN)
        return int(_Response.SERVING if is_serving else _Response.NOT_SERVING)


def add_to_server(servicer: HealthServicer, server: grpc.aio.Server) -> None:
    listing = grpc.unary_unary_rpc_method_handler(
        servicer.List,
        request_deserializer=HealthListRequest.FromString,
        response_serializer=HealthListResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(SERVICE_NAME, {LIST: listing})
    server.add_generic_rpc_handlers((handlers,))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)

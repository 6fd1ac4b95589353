"""The service of operations.v1: checks that an operator calls, asks the schedulers, encodes.

Of the context it reads the metadata alone, so that any transport may serve it.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing

from signalbox_contract.errors import InvalidArgument, RpcError
from signalbox_protos.operations.v1 import operations_pb2 as pb
from signalbox_protos.operations.v1 import operations_pb2_grpc
from signalbox_protos.scheduler.v1 import explain_pb2
from signalbox_router.apis.operations.models_servicer import OperatedModels
from signalbox_router.limits.operator_access import OperatorAccess
from signalbox_router.schedulers.operations_client import News, SchedulerOperations
from signalbox_rpc.interceptors.call_handlers import Context

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["OperationsService"].full_name
SHOWN_SESSION_BYTES = 4
"""Bytes of a session's hash that operators see."""


class OperationsServicer(operations_pb2_grpc.OperationsServiceServicer):
    """Serves operations.v1 by a router's connections to its schedulers."""

    def __init__(
        self, operations: SchedulerOperations, *, access: OperatorAccess, models: OperatedModels
    ) -> None:
        self._operations = operations
        self._models = models
        self._access = access

    async def Watch(
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncIterator[pb.WatchResponse]:
        self._access.check(context.invocation_metadata())
        with self._operations.joined() as watcher:
            async with aclosing(watcher.frames()) as frames:
                async for news in frames:
                    yield _response(news)

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        self._access.check(context.invocation_metadata())
        scheduler, explanation = await self._operations.explain(
            _explain_request(request), scheduler=request.scheduler
        )
        return pb.ExplainResponse(scheduler=scheduler, explanation=explanation)

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        self._access.check(context.invocation_metadata())
        response = pb.ListSessionsResponse()
        for scheduler, answer in (await self._operations.sessions(request.max_sessions)).items():
            if isinstance(answer, RpcError):
                response.schedulers.add(scheduler=scheduler, lost=str(answer))
                continue
            for one in answer:
                one.session = one.session[:SHOWN_SESSION_BYTES]
            response.schedulers.add(scheduler=scheduler, sessions=answer)
        return response

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        self._access.check(context.invocation_metadata())
        return pb.ListModelsResponse(models=self._models.statuses())

    async def LoadModel(
        self, request: pb.OperationsServiceLoadModelRequest, context: Context
    ) -> pb.OperationsServiceLoadModelResponse:
        self._access.check(context.invocation_metadata())
        await self._models.load(_name(request.name))
        return pb.OperationsServiceLoadModelResponse()

    async def UnloadModel(
        self, request: pb.OperationsServiceUnloadModelRequest, context: Context
    ) -> pb.OperationsServiceUnloadModelResponse:
        self._access.check(context.invocation_metadata())
        await self._models.unload(_name(request.name))
        return pb.OperationsServiceUnloadModelResponse()


def _name(name: str) -> str:
    if not name:
        raise InvalidArgument("name", name, "the name of a model")
    return name


def _response(news: News) -> pb.WatchResponse:
    if news.frame is None:
        return pb.WatchResponse(scheduler=news.scheduler, lost=news.lost)
    return pb.WatchResponse(scheduler=news.scheduler, frame=news.frame)


def _explain_request(request: pb.ExplainRequest) -> explain_pb2.ExplainRequest:
    match request.WhichOneof("request"):
        case "request_id" if request.request_id:
            return explain_pb2.ExplainRequest(request_id=request.request_id)
        case "request_number" if request.scheduler:
            return explain_pb2.ExplainRequest(request_number=request.request_number)
        case "request_number":
            raise InvalidArgument("scheduler", "", "the address of one, with a request_number")
        case _:
            raise InvalidArgument("request", "none", "request_id or request_number")

"""Plays a recording of a scheduler in the console: a port of its own for the page and its calls."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from signalbox.version import VERSION
from signalbox_contract.errors import FailedPrecondition, InvalidArgument
from signalbox_protos.operations.v1 import operations_pb2 as pb
from signalbox_protos.operations.v1 import operations_pb2_grpc
from signalbox_protos.scheduler.v1 import explain_pb2
from signalbox_router.apis.connect.web_servicer import RpcErrors, WebServicer, methods_of
from signalbox_router.console.console_files import PATHS, ConsoleFiles
from signalbox_router.http.app import make_app
from signalbox_router.http.server import HttpServer
from signalbox_router.limits.operator_access import OperatorAccess
from signalbox_rpc.http.host_check import HttpAccess
from signalbox_rpc.interceptors.call_handlers import Context
from signalbox_rpc.limits.large_messages import LargeMessages
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.shutdown import run_until_signalled
from signalbox_scheduler.service.replay.replay_codec import Replay
from signalbox_scheduler.service.replay.replayed_frames import ReplayedFrames
from signalbox_scheduler.service.reports.insight_codec import explain, nanoseconds

HOST = "127.0.0.1"
MAX_REQUEST_BYTES = 64 << 10


class ReplayServicer(operations_pb2_grpc.OperationsServiceServicer):
    """Serves operations.v1 of a recorded scheduler.

    Args:
        name: stands for the scheduler's address.
        speed: factor of the recorded times.
    """

    def __init__(self, replay: Replay, *, name: str, speed: float) -> None:
        self._replay = replay
        self._frames = ReplayedFrames(replay)
        self._name = name
        self._speed = speed
        self._access = OperatorAccess(None, host=HOST)
        self._recording = pb.Recording(
            begins_at_ns=nanoseconds(replay.began_at),
            ends_at_ns=nanoseconds(self._frames.ends_at),
        )

    async def Watch(
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncIterator[pb.WatchResponse]:
        """Plays the recording from its beginning."""
        self._access.check(context.invocation_metadata())
        clock = asyncio.get_running_loop().time
        begins_at, index = clock(), 0
        while (frame := self._frames.frame(index)) is not None:
            played_s = (frame.at_ns - self._recording.begins_at_ns) / 1e9 / self._speed
            await asyncio.sleep(max(0.0, begins_at + played_s - clock()))
            yield pb.WatchResponse(scheduler=self._name, frame=frame, recording=self._recording)
            index += 1
        if fault := self._frames.fault:
            yield pb.WatchResponse(scheduler=self._name, lost=fault, recording=self._recording)

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        """Explains a request as of the last moment that was played to anyone."""
        self._access.check(context.invocation_metadata())
        asked = explain_pb2.ExplainRequest(request_id=request.request_id)
        match request.WhichOneof("request"):
            case None:
                raise InvalidArgument("request", "none", "request_id or request_number")
            case "request_number":
                asked.request_number = request.request_number
        found = explain(asked, self._replay.cluster, history=self._replay.num_explained)
        return pb.ExplainResponse(scheduler=self._name, explanation=found)

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """Lists none: they are of now, and the recording is of another time."""
        self._access.check(context.invocation_metadata())
        return pb.ListSessionsResponse()

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        """Lists none: no launcher has models here."""
        self._access.check(context.invocation_metadata())
        return pb.ListModelsResponse()

    async def LoadModel(
        self, request: pb.OperationsServiceLoadModelRequest, context: Context
    ) -> pb.OperationsServiceLoadModelResponse:
        raise FailedPrecondition("a recording is played, which loads no model")

    async def UnloadModel(
        self, request: pb.OperationsServiceUnloadModelRequest, context: Context
    ) -> pb.OperationsServiceUnloadModelResponse:
        raise FailedPrecondition("a recording is played, which has no model loaded")


def make_server(servicer: ReplayServicer, *, port: int) -> HttpServer:
    methods = methods_of(
        servicer, operations_pb2_grpc.add_OperationsServiceServicer_to_server, LargeMessages()
    )
    web = WebServicer(
        methods,
        max_bytes=MAX_REQUEST_BYTES,
        ignores_unknown=True,
        on_malformed=lambda _method: None,
    )
    services = {path.rpartition("/")[0]: web for path in methods}
    app = make_app((), version=VERSION, services=services)
    return HttpServer(
        ConsoleFiles(app),
        Endpoint(host=HOST, port=port),
        shapes=dict.fromkeys(services, RpcErrors()),
        access=HttpAccess(pages=PATHS),
    )


async def play(replay: Replay, path: str, *, speed: float, port: int) -> None:
    """Serves the console on a loopback port until Ctrl-C. Raises PortInUse."""
    server = make_server(ReplayServicer(replay, name=Path(path).name, speed=speed), port=port)
    await server.start()
    print(f"{path} is played at http://{server.address}/#/live; Ctrl-C ends", flush=True)
    await run_until_signalled(server, grace_s=0.0)

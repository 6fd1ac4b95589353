"""SchedulerService: routers send requests, and get one message for each step."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc

from signalbox_contract.description_bounds import check_description
from signalbox_contract.errors import AlreadyExists, InvalidArgument, NotFound, Unavailable
from signalbox_contract.model import encode_adapter, encode_model
from signalbox_contract.request import decode as decode_request
from signalbox_contract.request import decode_pause
from signalbox_contract.tokenizer_files import split_files
from signalbox_contract.updates import encode as encode_updates
from signalbox_protos.scheduler.v1 import explain_pb2, state_pb2, stats_pb2, watch_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.insight.recorder import UNRECORDED, InputRecorder
from signalbox_scheduler.requests.failures import RETRY_AFTER_S, drains
from signalbox_scheduler.service.reports import insight_codec, state_codec
from signalbox_scheduler.service.reports.watch_feed import WatchFeed
from signalbox_scheduler.service.router_session import Heartbeat, Message, ModelChanged, Session
from signalbox_scheduler.workers.adapters.cluster_adapters import ClusterAdapters
from signalbox_scheduler.workers.cluster import Cluster

MAX_LISTED = 100
"""Most requests, and most sessions, that one answer lists: the place of each request in the queue
is searched for."""
_MAX_NAMED = 32
"""Most workers that an error names."""

Context = grpc.aio.ServicerContext[Any, Any]


class SchedulerServicer(pb_grpc.SchedulerServiceServicer):
    """Decodes, asks the cluster, encodes."""

    def __init__(
        self,
        cluster: Cluster,
        config: SchedulerConfig,
        recorder: InputRecorder = UNRECORDED,
        *,
        adapters: ClusterAdapters,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """Refuses requests while `is_draining`, so that routers send them to other schedulers."""
        self._adapters = adapters
        self._is_draining = is_draining
        self._recorder = recorder
        self._cluster = cluster
        self._config = config
        self._feed = WatchFeed(cluster)
        self._launcher: stats_pb2.LauncherState | None = None
        """Last state that the launcher of the workers has sent; None while none is there."""

    async def Connect(
        self, requests: AsyncIterator[pb.ConnectRequest], context: Context
    ) -> AsyncIterator[pb.ConnectResponse]:
        session = Session(
            self._cluster.requests,
            max_messages=self._config.router_buffer_messages,
            recorder=self._recorder.router(),
        )
        interval_s = self._config.heartbeat_interval_s
        reader = asyncio.create_task(self._read(requests, session))
        beating = asyncio.create_task(session.beat(interval_s=interval_s))
        watcher = session.model_changed
        self._cluster.watchers[watcher] = None
        try:
            # Headers at once, so that a router knows that it is connected before it asks.
            await context.send_initial_metadata(())
            while (message := await session.next_message()) is not None:
                yield _encode(message, interval_s)
            reader.result()
        finally:
            del self._cluster.watchers[watcher]
            reader.cancel()
            beating.cancel()
            session.abort_all()

    async def _read(self, requests: AsyncIterator[pb.ConnectRequest], session: Session) -> None:
        """Takes what the router sends; the end of its stream, or an error in it, ends all."""
        try:
            async for request in requests:
                now = time.monotonic()
                if self._is_draining() and request.HasField("add_request"):
                    session.refuse(decode_request(request.add_request), drains(), now=now)
                    continue  # which no recording needs to know
                session.recorder.said(request, now)
                apply_message(request, session, now)
        finally:
            session.end()

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        if self._is_draining():
            raise Unavailable("the scheduler is draining", RETRY_AFTER_S)
        model = self._cluster.model
        if model is None or not self._cluster.is_serving:
            raise self._no_worker()
        return pb.GetModelResponse(
            model=encode_model(replace(model, adapters=model.offered)),
            effective_max_model_len=self._cluster.step_loops.effective_max_model_len,
            takes_snapshot_positions=self._cluster.step_loops.leave_snapshots,
        )

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        if self._cluster.model is None:
            raise self._no_worker()
        for name, chunk in split_files(self._cluster.tokenizer_files):
            yield pb.GetTokenizerResponse(file_name=name, chunk=chunk)

    def _no_worker(self) -> Unavailable:
        starting = self._cluster.starting_workers.describe()
        return Unavailable(
            "no worker serves" + (f"; {starting}" if starting else ""), RETRY_AFTER_S
        )

    async def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: Context
    ) -> pb.LoadAdapterResponse:
        adapter = await self._adapters.load(
            request.name,
            request.path,
            is_replacing=request.replace,
            is_first_use=request.at_first_use,
        )
        return pb.LoadAdapterResponse(adapter=encode_adapter(adapter))

    async def UnloadAdapter(
        self, request: pb.UnloadAdapterRequest, context: Context
    ) -> pb.UnloadAdapterResponse:
        num_requests = await self._adapters.unload(request.name)
        return pb.UnloadAdapterResponse(num_requests=num_requests)

    async def ListAdapters(
        self, request: pb.ListAdaptersRequest, context: Context
    ) -> pb.ListAdaptersResponse:
        listed = [
            pb.LoadedAdapter(
                adapter=encode_adapter(replace(one.adapter, is_leaving=False)),
                num_requests=one.num_requests,
                is_leaving=one.adapter.is_leaving,
            )
            for one in self._adapters.in_use
        ]
        return pb.ListAdaptersResponse(adapters=listed)

    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, context: Context
    ) -> pb.DrainWorkerResponse:
        loops = {loop.worker_name: loop for loop in self._cluster.step_loops}
        loop = loops.get(request.worker)
        if loop is None:
            joined = ", ".join(sorted(loops)[:_MAX_NAMED]) or "none"
            raise NotFound(f"no worker has joined at {request.worker!r}; workers: {joined}")
        self._cluster.drain(loop)
        scheduler = loop.scheduler
        num_requests = len(scheduler.running) + len(scheduler.swapped)
        return pb.DrainWorkerResponse(num_requests=num_requests)

    async def ReportLauncher(
        self, requests: AsyncIterator[pb.ReportLauncherRequest], context: Context
    ) -> pb.ReportLauncherResponse:
        if self._launcher is not None:
            raise AlreadyExists("another launcher keeps the workers of this scheduler")
        self._launcher = stats_pb2.LauncherState()
        try:
            async for request in requests:
                try:
                    check_description(request.state)
                except ValueError as error:
                    raise InvalidArgument("state", None, reason=str(error)) from None
                self._launcher = request.state
        finally:
            self._launcher = None
        return pb.ReportLauncherResponse()

    async def ClearCache(
        self, request: pb.ClearCacheRequest, context: Context
    ) -> pb.ClearCacheResponse:
        tenant = request.tenant if request.HasField("tenant") else None
        self._recorder.cache_cleared(tenant, time.monotonic())
        faults: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        num_workers = self._cluster.clear_prefix_cache(
            tenant, lambda worker, fault: faults.put_nowait((worker, fault))
        )
        ended = [await faults.get() for _ in range(num_workers)]
        return pb.ClearCacheResponse(
            workers=[pb.ClearedCache(worker=worker, fault=fault) for worker, fault in ended]
        )

    async def GetStats(
        self, request: stats_pb2.GetStatsRequest, context: Context
    ) -> stats_pb2.GetStatsResponse:
        stats = insight_codec.stats(
            self._cluster,
            max_live_requests=min(request.max_live_requests, MAX_LISTED),
            max_sessions=min(request.max_sessions, MAX_LISTED),
        )
        if self._launcher is not None and self._launcher.placement:
            stats.launcher.CopyFrom(self._launcher)
        return stats

    async def Explain(
        self, request: explain_pb2.ExplainRequest, context: Context
    ) -> explain_pb2.ExplainResponse:
        return insight_codec.explain(request, self._cluster, history=self._config.explain_history)

    async def Watch(
        self, requests: AsyncIterator[watch_pb2.WatchRequest], context: Context
    ) -> AsyncIterator[watch_pb2.WatchResponse]:
        async def read() -> None:
            async for _ in requests:
                self._feed.ask(watcher)

        with self._feed.joined() as watcher:
            reader = asyncio.create_task(read())
            try:
                async with aclosing(watcher.frames()) as frames:
                    async for frame in frames:
                        yield watch_pb2.WatchResponse(frame=frame)
            finally:
                reader.cancel()

    async def DumpState(
        self, request: state_pb2.DumpStateRequest, context: Context
    ) -> AsyncIterator[state_pb2.DumpStateResponse]:
        for part in state_codec.state(  # all of it at once: it is of one moment
            self._cluster,
            self._config,
            now=time.monotonic(),
            include_token_ids=request.include_token_ids,
        ):
            yield part


def _encode(message: Message, heartbeat_interval_s: float) -> pb.ConnectResponse:
    if isinstance(message, ModelChanged):
        return pb.ConnectResponse(model_changed=True)
    if isinstance(message, Heartbeat):
        return pb.ConnectResponse(heartbeat_interval_ns=int(heartbeat_interval_s * 1e9))
    return pb.ConnectResponse(updates=encode_updates(message))


def apply_message(request: pb.ConnectRequest, session: Session, now: float) -> None:
    """Tells the cluster what a router said. Raises InvalidArgument for what none of ours says."""
    for pause in request.session_pauses:
        session.pause(decode_pause(pause))
    match request.WhichOneof("message"):
        case "add_request":
            session.add(decode_request(request.add_request), now=now)
        case "abort_request":
            session.abort(request.abort_request.handle)
        case "stop_sequence":
            stop = request.stop_sequence
            session.stop_sequence(stop.handle, index=stop.index, keep_tokens=stop.keep_tokens)
        case None if request.session_pauses:
            return
        case _:
            raise InvalidArgument("message", "none", "add_request, abort_request, ...")

"""WorkerRegistryService: workers join, and stay as long as their stream is alive."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc

from signalbox_contract.cache_groups import describe_groups, num_tokens_in
from signalbox_contract.description_bounds import check_description
from signalbox_contract.errors import Aborted, FailedPrecondition, InvalidArgument, Unavailable
from signalbox_contract.model import ModelInfo, WorkerCapacity
from signalbox_contract.tokenizer_files import hash_files
from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from signalbox_rpc.interceptors.peer_roles import WORKER, names_of
from signalbox_rpc.lifetime.handled_errors import release_frames
from signalbox_rpc.limits.peer_timeout import wait_for_first
from signalbox_scheduler.config import PeerIdentity, SchedulerConfig
from signalbox_scheduler.insight.recorder import UNRECORDED, InputRecorder
from signalbox_scheduler.requests.failures import RETRY_AFTER_S
from signalbox_scheduler.service.startup_servicer import read_reports
from signalbox_scheduler.workers.adapters.cluster_adapters import ClusterAdapters
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.engine import Engine
from signalbox_scheduler.workers.engine.lease_client import LeaseClient, WorkerLostError
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.factory import make_scheduler

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Requests = AsyncIterator[pb.RegisterRequest]

JOIN_S = 10.0
"""Seconds within which a worker that registers must send `join`."""


class WorkerRegistryServicer(pb_grpc.WorkerRegistryServiceServicer):
    """Dials a worker that joins, gives it an engine, and takes it out when its lease ends."""

    def __init__(
        self,
        cluster: Cluster,
        config: SchedulerConfig,
        recorder: InputRecorder = UNRECORDED,
        *,
        adapters: ClusterAdapters,
    ) -> None:
        self._adapters = adapters
        self._recorder = recorder
        self._cluster = cluster
        self._config = config

    async def Register(
        self, requests: Requests, context: Context
    ) -> AsyncIterator[pb.RegisterResponse]:
        join = await _first(requests)
        address = _address(join.address, context.peer())
        self._check_quarantine(address)
        role = _role(join.role)
        worker = LeaseClient(
            address=address,
            epoch=join.epoch,
            recorder=self._recorder.worker(),
            tls=self._config.tls,
            # The server at that address must have the certificate of the worker that registers.
            certified_name=self._config.tls.peer_names.find(WORKER, names_of(context)),
        )
        try:
            model, capacity = await self._ask(worker)
            files = await self._tokenizer_files(worker, model)
            scheduler = self._make_scheduler(worker, model, capacity)
            await self._open(worker, scheduler)
            engine = self._make_engine(worker, scheduler)
            engine.loop.asked_role = role
            async with contextlib.aclosing(self._lease(engine, requests)) as answers:
                async with self._adapters.joining(worker.adapters, engine.loop, model) as served:
                    self._serve(served, files)
                    self._check_roles(engine.loop, served)
                    worker.recorder.describe(
                        address=worker.address,
                        epoch=worker.epoch,
                        model=served,
                        capacity=capacity,
                        certified_name=worker.certified_name,
                        role=role,
                    )
                    accepted = await anext(answers)
                yield accepted
                async for answer in answers:
                    yield answer
        except WorkerLostError as error:
            logger.warning("refused the worker at %s: %s", worker.address, error)
            raise Unavailable(
                f"cannot use the worker at {worker.address}: {error}", RETRY_AFTER_S
            ) from None
        finally:
            await worker.close()

    async def ReportStartup(
        self, requests: AsyncIterator[pb.ReportStartupRequest], context: Context
    ) -> pb.ReportStartupResponse:
        starting = self._cluster.starting_workers
        with starting.reporting():
            await read_reports(requests, starting)
        return pb.ReportStartupResponse()

    async def _ask(self, worker: LeaseClient) -> tuple[ModelInfo, WorkerCapacity]:
        try:
            model, capacity = await worker.info()
            model.check()
            capacity.check()
        except ValueError as error:
            raise FailedPrecondition(str(error)) from None
        self._check_served(model)
        return model, capacity

    async def _tokenizer_files(self, worker: LeaseClient, model: ModelInfo) -> dict[str, bytes]:
        files = self._cluster.tokenizer_files
        if not self._cluster.step_loops:
            files = await worker.tokenizer_files()
            _check_tokenizer(model, files)
        return files

    def _make_scheduler(
        self, worker: LeaseClient, model: ModelInfo, capacity: WorkerCapacity
    ) -> Scheduler:
        try:
            return make_scheduler(
                self._config,
                model=model,
                capacity=capacity,
                admission=self._cluster.admission,
                identity=PeerIdentity(
                    address=worker.address,
                    epoch=worker.epoch,
                    certified_name=worker.certified_name,
                ),
            )
        except ValueError as error:
            raise FailedPrecondition(str(error)) from None

    def _make_engine(self, worker: LeaseClient, scheduler: Scheduler) -> Engine:
        return Engine(
            worker=worker,
            scheduler=scheduler,
            send_updates=self._cluster.requests.send_updates,
            wake_all=self._cluster.wake,
            step_timeout_s=self._config.step_timeout_s,
            recorder=worker.recorder,
        )

    async def _open(self, worker: LeaseClient, scheduler: Scheduler) -> None:
        """Opens the lease; a worker that has failed lately has to compute a token before."""
        pools = {
            "num_gpu_blocks": scheduler.blocks.gpu.num_blocks,
            "num_cpu_blocks": scheduler.blocks.cpu.num_blocks,
        }
        records = self._cluster.worker_records
        if records.num_failures_of(worker.address):
            try:
                await worker.check(**pools)
            except WorkerLostError:
                records.count(records.loss_of(worker.address))
                self._log_quarantine(worker.address)
                raise
        await worker.open(**pools)

    def _log_quarantine(self, worker: str) -> None:
        if (quarantine := self._cluster.worker_records.quarantine(worker)) is not None:
            logger.warning(_QUARANTINED, quarantine._asdict())

    def _check_quarantine(self, worker: str) -> None:
        quarantine = self._cluster.worker_records.quarantine(worker)
        if quarantine is not None:
            raise Unavailable(
                f"the worker at {worker} failed {quarantine.num_failures} times in ten minutes,"
                f" and is refused for {quarantine.pause_s:g} s",
                quarantine.left_s,
            )

    def _serve(self, model: ModelInfo, files: dict[str, bytes]) -> None:
        """Decides what is served, unless a worker has that joined while this one took its time."""
        self._check_served(model)
        self._cluster.tokenizer_files = files
        self._cluster.serve(model)

    def _check_served(self, model: ModelInfo) -> None:
        served = self._cluster.model if self._cluster.step_loops else None
        if served and (difference := served.difference(model)):
            raise FailedPrecondition(f"it serves another model: its {difference}")

    def _check_roles(self, loop: StepLoop, model: ModelInfo) -> None:
        pools = model.pooling is not None
        if refusal := self._cluster.roles.refusal(loop, pools=pools):
            raise FailedPrecondition(refusal)

    async def _lease(
        self, engine: Engine, requests: Requests
    ) -> AsyncGenerator[pb.RegisterResponse, None]:
        """Runs the engine while the worker gives signs of life; repeats each of them.

        Has joined the worker when it yields the first answer, that the worker is accepted.
        """
        loop, address = engine.loop, engine.loop.worker_name
        loop.recorder.joined(time.monotonic())
        self._cluster.join(loop)
        logger.info(_JOINED, _joined_fields(loop.scheduler))
        running = asyncio.create_task(engine.run())
        # Not in a `finally` after an await: gRPC may cancel a handler more than once.
        running.add_done_callback(partial(self._leave, loop))
        interval_ns = int(self._config.heartbeat_interval_s * 1e9)
        try:
            yield pb.RegisterResponse(accepted=pb.Accepted(heartbeat_interval_ns=interval_ns))
            while True:
                heartbeat = await self._next_heartbeat(requests, running)
                if heartbeat is None:
                    return
                if heartbeat.state == pb.WORKER_STATE_DRAINING:
                    self._cluster.drain(loop)
                if loop.is_drained:
                    yield pb.RegisterResponse(drained=pb.Drained())
                yield pb.RegisterResponse(heartbeat=heartbeat)
        except Aborted as error:
            logger.warning(
                "worker lost: %(worker)s, %(reason)s", {"worker": address, "reason": str(error)}
            )
            raise
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _leave(self, loop: StepLoop, running: asyncio.Task[None]) -> None:
        self._adapters.leave(loop)
        loop.recorder.left(time.monotonic())
        self._cluster.leave(loop)
        logger.info("worker left: %(worker)s", {"worker": loop.worker_name})
        self._log_quarantine(loop.worker_name)
        if not running.cancelled():
            release_frames(running.exception())

    async def _next_heartbeat(
        self, requests: Requests, running: asyncio.Task[None]
    ) -> pb.Heartbeat | None:
        """Returns None at the end of the stream. Raises Aborted if the worker is lost."""
        message = asyncio.ensure_future(anext(requests, None))
        try:
            await wait_for_first(message, running, within_s=self._config.lease_s)
            if running.done():
                raise Aborted(f"the lease is over: {running.exception()}")
            if not message.done():
                raise Aborted(f"no heartbeat within {self._config.lease_s} s")
            request = message.result()
            return request.heartbeat if request is not None else None
        finally:
            message.cancel()


async def _first(requests: Requests) -> pb.Join:
    message = asyncio.ensure_future(anext(requests, None))
    try:
        if not await wait_for_first(message, within_s=JOIN_S):
            raise Aborted(f"no join within {JOIN_S:g} s")
        first = message.result()
    finally:
        message.cancel()
    if first is None or first.WhichOneof("message") != "join" or not first.join.epoch:
        raise InvalidArgument("join", "missing", "a first message `join` with an epoch")
    try:
        check_description(first.join)
    except ValueError as error:
        raise InvalidArgument("join", None, reason=str(error)) from None
    return first.join


def _role(name: str) -> WorkerRole:
    try:
        return WorkerRole(name or WorkerRole.BOTH)
    except ValueError:
        raise InvalidArgument("join.role", name, ", ".join(WorkerRole)) from None


def _address(advertised: str, peer: str) -> str:
    """Fills in an empty host from the connection's peer, "ipv4:HOST:PORT" or "ipv6:[HOST]:PORT"."""
    host, _, port = advertised.rpartition(":")
    if not port.isdigit():
        raise InvalidArgument("join.address", advertised, "host:port")
    if host:
        return advertised
    return f"{unquote(peer).partition(':')[2].rpartition(':')[0]}:{port}"


def _check_tokenizer(model: ModelInfo, files: dict[str, bytes]) -> None:
    if hash_files(files) != model.tokenizer_sha256:
        raise FailedPrecondition("the tokenizer files do not have the hash that was announced")


_JOINED = (
    "worker joined: %(worker)s, KV cache of %(kv_cache_tokens)d tokens and swap space of"
    " %(swap_space_tokens)d in blocks of %(block_size)d (%(groups)s), steps of at most"
    " %(max_num_seqs)d sequences and %(max_num_batched_tokens)d tokens; %(numerics)s"
)


_QUARANTINED = (
    "worker quarantined: %(worker)s, it failed %(num_failures)d times in ten minutes and may join"
    " again after %(pause_s)g s"
)


def _joined_fields(scheduler: Scheduler) -> dict[str, object]:
    blocks, limits = scheduler.blocks, scheduler.limits
    tokens = partial(num_tokens_in, groups=blocks.groups, block_size=blocks.block_size)
    numerics = scheduler.planner.numerics_changes.numerics
    return {
        "worker": scheduler.worker_name,
        "kv_cache_tokens": tokens(blocks.gpu.num_blocks),
        "swap_space_tokens": tokens(blocks.cpu.num_blocks),
        "block_size": blocks.block_size,
        "groups": describe_groups(blocks.groups),
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "numerics": str(numerics or "numerics unknown"),
    }

"""Keeps the worker registered with the scheduler: joins, sends heartbeats, joins again when lost.

The open Register stream is the lease. Every registration has a nonce of its own, the epoch, so a
scheduler that was lost cannot be mistaken for the one that is there now.
"""

import asyncio
import contextlib
import logging
import math
import random
import secrets
import time
from collections.abc import Callable

import grpc

from signalbox_contract.model import encode_capacity, encode_model
from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc
from signalbox_rpc.limits.peer_timeout import wait_for_first
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig
from signalbox_worker.service.worker import NO_EPOCH, Worker

logger = logging.getLogger(__name__)

ACCEPT_TIMEOUT_S = 60.0
"""Seconds for the scheduler to accept; before, it lets the worker allocate its cache."""

MISSED_HEARTBEATS = 6
"""Intervals without a heartbeat after which the scheduler counts as lost."""

HAND_OVER_S = 2.0
"""Seconds for the scheduler to learn that a worker leaves with work unfinished."""

START_S = 5.0
"""Seconds after the worker's start in which a scheduler that does not answer is no fault."""

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 1.0

_FATAL = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
}

_Call = grpc.aio.StreamStreamCall[pb.RegisterRequest, pb.RegisterResponse]


class RegistrationRefused(Exception):
    """The scheduler refuses this worker, and a retry cannot succeed; the message is one line."""


class _SchedulerLost(Exception):
    """The registration has ended; another one may succeed."""


class Registration:
    """Registers one worker, for as long as `run` runs."""

    def __init__(
        self,
        *,
        worker: Worker,
        scheduler_address: str,
        advertised_address: str,
        tls: TlsConfig = CLEAR,
        on_accepted: Callable[[], object] = lambda: None,
        role: WorkerRole = WorkerRole.BOTH,
    ) -> None:
        """
        Args:
            on_accepted: called each time that the scheduler takes this worker in.
            role: part of the work that the worker asks for.
        """
        self._role = role
        self._on_accepted = on_accepted
        self._tls = tls
        self._worker = worker
        self._scheduler_address = scheduler_address
        self._advertised_address = advertised_address
        self._call: _Call | None = None
        self._accepted = asyncio.Event()
        self._draining = asyncio.Event()
        self._drained = asyncio.Event()
        self._backoff_s = MIN_BACKOFF_S
        self._warns_from = -math.inf
        """Time on the monotonic clock from which a missing scheduler is worth a warning."""
        self._told_reasons: set[str] = set()
        """Reasons logged for failed registrations; empty once one has succeeded."""

    @property
    def is_accepted(self) -> bool:
        """True while the scheduler has accepted this worker and answers."""
        return self._accepted.is_set()

    @property
    def is_draining(self) -> bool:
        """True once this worker has asked for no more work, as it does when it is signalled."""
        return self._draining.is_set()

    async def wait_accepted(self) -> None:
        """Waits until the scheduler has taken this worker in."""
        await self._accepted.wait()

    async def run(self) -> None:
        """Registers, again and again, until drained. Raises RegistrationRefused."""
        self._warns_from = time.monotonic() + START_S
        while not self._drained.is_set():
            try:
                await self._register()
            except _SchedulerLost as lost:
                if self._draining.is_set():
                    self._drained.set()  # no scheduler has work for this worker
                    return
                self._remind(str(lost))
                await asyncio.sleep(self._backoff_s * random.uniform(0.5, 1.0))
                self._backoff_s = min(MAX_BACKOFF_S, 2 * self._backoff_s)

    async def drain(self, *, timeout_s: float) -> None:
        """Asks for no more work and waits until the scheduler says that none is left.

        What is left after `timeout_s` migrates: it goes on at other workers.
        """
        self._draining.set()
        if not self._accepted.is_set():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()
        except TimeoutError:
            logger.warning(
                "the requests that still run after %.1f s continue at other workers", timeout_s
            )
            await self._hand_over()

    async def _hand_over(self) -> None:
        """Ends the registration in order, so that the scheduler does not wait for a timeout."""
        if self._call is not None:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._call.done_writing()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S):
                await self._drained.wait()

    def _remind(self, reason: str) -> None:
        """Says why this worker is not registered: each reason once, as they may alternate.

        Services of one deployment start in any order, so that the first seconds need no reason.
        """
        warns = time.monotonic() >= self._warns_from
        shown = f": {reason}" if warns else ""
        if shown not in self._told_reasons:
            self._told_reasons.add(shown)
            level = logging.WARNING if warns else logging.INFO
            logger.log(level, "waiting for the scheduler at %s%s", self._scheduler_address, shown)

    async def _register(self) -> None:
        """Holds one registration, until drained. Raises _SchedulerLost or RegistrationRefused."""
        epoch = secrets.randbits(64) or 1
        self._worker.begin_epoch(epoch)
        try:
            async with open_channel(self._scheduler_address, tls=self._tls) as channel:
                call = scheduler_pb2_grpc.WorkerRegistryServiceStub(channel).Register()
                self._call = call
                try:
                    await self._hold(call, epoch)
                finally:
                    self._call = None
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            if error.code() in _FATAL:
                raise RegistrationRefused(
                    f"the scheduler at {self._scheduler_address} refuses this worker: {reason}"
                ) from None
            raise _SchedulerLost(reason) from None
        finally:
            self._accepted.clear()
            self._worker.begin_epoch(NO_EPOCH)

    async def _hold(self, call: _Call, epoch: int) -> None:
        await _write(call, pb.RegisterRequest(join=self._join(epoch)))
        accepted = await _read(call, timeout_s=ACCEPT_TIMEOUT_S)
        if not accepted.HasField("accepted"):
            raise _SchedulerLost("its answer to `join` is not `accepted`")
        interval_s = max(0.01, accepted.accepted.heartbeat_interval_ns / 1e9)
        logger.debug("registered with the scheduler at %s", self._scheduler_address)
        self._accepted.set()
        self._on_accepted()
        self._backoff_s = MIN_BACKOFF_S
        self._warns_from = -math.inf
        self._told_reasons.clear()
        beating = asyncio.create_task(self._beat(call, interval_s))
        try:
            await self._listen(call, interval_s)
        finally:
            beating.cancel()

    def _join(self, epoch: int) -> pb.Join:
        worker = self._worker
        return pb.Join(
            epoch=epoch,
            address=self._advertised_address,
            model=encode_model(worker.model),
            capacity=encode_capacity(worker.announced_capacity),
            role=self._role,
        )

    async def _beat(self, call: _Call, interval_s: float) -> None:
        """Sends a heartbeat each interval, and one at once when draining begins."""
        announced = False
        while True:
            draining = self._draining.is_set()
            state = pb.WORKER_STATE_DRAINING if draining else pb.WORKER_STATE_READY
            await _write(call, pb.RegisterRequest(heartbeat=pb.Heartbeat(state=state)))
            announced = announced or draining
            try:
                async with asyncio.timeout(interval_s):
                    await (asyncio.Event() if announced else self._draining).wait()
            except TimeoutError:
                continue

    async def _listen(self, call: _Call, interval_s: float) -> None:
        """Returns when the scheduler reports that this worker has no work left."""
        while True:
            response = await _read(call, timeout_s=MISSED_HEARTBEATS * interval_s)
            if response.HasField("drained"):
                logger.info("drained: no request is left here; the worker ends")
                self._drained.set()
                await call.done_writing()
                return


async def _write(call: _Call, request: pb.RegisterRequest) -> None:
    try:
        await call.write(request)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return  # the call has ended; its reader gets the reason


async def _read(call: _Call, *, timeout_s: float) -> pb.RegisterResponse:
    reading = asyncio.ensure_future(call.read())
    try:
        if not await wait_for_first(reading, within_s=timeout_s):
            raise _SchedulerLost(f"it has been silent for {timeout_s:.1f} s")
        response = reading.result()
    finally:
        reading.cancel()
        del reading  # else its exception would keep it, and the connection, in a cycle
    if not isinstance(response, pb.RegisterResponse):
        raise _SchedulerLost("it has closed the registration")
    return response

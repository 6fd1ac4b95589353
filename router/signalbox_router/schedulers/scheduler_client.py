"""The client of one scheduler: one stream that carries all requests.

It reconnects to the scheduler as often as needed, asks for the served model, and passes the tokens
of each step to their requests. `scheduler_pool.py` decides what happens to requests when the stream
breaks.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Protocol

import grpc

from signalbox_contract import updates
from signalbox_contract.errors import RpcError
from signalbox_contract.request import SessionPause, encode_pause
from signalbox_contract.request import encode as encode_request
from signalbox_contract.updates import RequestUpdates
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.requests.active_request import ActiveRequest
from signalbox_router.requests.request_output import End
from signalbox_router.requests.request_table import RequestTable
from signalbox_router.schedulers.model_client import ModelClient
from signalbox_router.schedulers.scheduler_request import error_of, request_of
from signalbox_rpc.interceptors.status import retry_after_s
from signalbox_rpc.limits.peer_timeout import wait_for_first
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig, TlsError

logger = logging.getLogger(__name__)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
RECONNECT_AFTER_S = 0.5
PAUSE_S = 1.0
"""Longest time until a scheduler is told how an answer of a session has ended."""
MISSED_HEARTBEATS = 5.5
"""Intervals of heartbeats without any message after which the scheduler counts as lost."""
SERVED_POLLS = 10
"""Intervals of the poll between two while a model is served. The scheduler says when it changes;
one of a version that does not say so is noticed after this time."""
_MIN_POLL_S, _MAX_POLL_S = 0.05, 1.0
_POLL_SHARE = 1 / 20
"""Part of the time waited so far for a worker after which it is asked for again."""


_Call = grpc.aio.StreamStreamCall[pb.ConnectRequest, pb.ConnectResponse]


class ConnectionListener(Protocol):
    """Receives the events of a connection; its methods must not block."""

    def model_changed(self) -> None:
        """Called when `served` has changed."""

    def window_changed(self) -> None:
        """Called when `served` may have another effective window, of the same model."""

    def lost(self, requests: list[ActiveRequest], *, is_faulty: bool) -> None:
        """Called when the stream broke; `is_faulty` if its messages were invalid."""

    def failed(self, request: ActiveRequest, error: RpcError, by: "SchedulerConnection") -> None:
        """Called when the scheduler has ended a request by an error."""


class SchedulerConnection:
    """One scheduler: the model that it serves, and the live requests on its stream."""

    def __init__(
        self,
        address: str,
        *,
        models: ModelClient,
        model_poll_s: float,
        listener: ConnectionListener,
        tls: TlsConfig = CLEAR,
        is_expected: bool = True,
    ) -> None:
        self.address = address
        self.served: ServedModel | None = None
        """Model served on the stream; None while there is none."""
        self.last_served: ServedModel | None = None
        """Model that was served last, also while the scheduler is lost."""
        self._model_poll_s = model_poll_s
        self._listener = listener
        self._tls = tls
        self._models = models
        self._requests = RequestTable[ActiveRequest]()
        self._outgoing: asyncio.Queue[pb.ConnectRequest | None] | None = None
        self._pauses: list[pb.SessionPause] = []
        """Pauses of sessions that the next message to the scheduler takes along."""
        self._model_changed = asyncio.Event()
        self._expected = asyncio.Event()
        """Set unless the launcher has not loaded the model; no scheduler is looked for then."""
        if is_expected:
            self._expected.set()
        self._heard: asyncio.Future[int]
        """Nanoseconds from the next heartbeat of the stream to the one after it."""
        self._last_at = 0.0
        """Time of the last message, by the clock of the event loop."""
        self._waiting_for = ""
        self.absence = ""
        """The scheduler's reason for serving no model; "" if it serves one or does not answer."""

    @property
    def is_open(self) -> bool:
        """True if there is a stream."""
        return self._outgoing is not None

    @property
    def num_live(self) -> int:
        return len(self._requests)

    def submit(self, request: ActiveRequest) -> None:
        """Sends a request on the stream, which must be open; from now on its tokens arrive."""
        assert self._outgoing is not None, "no stream"
        message = pb.ConnectRequest(add_request=encode_request(request_of(request)))
        self._requests[request.handle] = request
        self._send(message)

    def abort(self, handle: int) -> None:
        """Ends a request; does nothing if it has ended."""
        if self._requests.pop(handle, None) is not None and self._outgoing is not None:
            abort = pb.AbortRequest(handle=handle)
            self._send(pb.ConnectRequest(abort_request=abort))

    def stop_sequence(self, handle: int, *, index: int, keep_tokens: int) -> None:
        """Ends one sequence; does nothing if the request has ended."""
        if handle in self._requests and self._outgoing is not None:
            stop = pb.StopSequence(handle=handle, index=index, keep_tokens=keep_tokens)
            self._send(pb.ConnectRequest(stop_sequence=stop))

    def expect(self, is_expected: bool) -> None:
        """Looks for a scheduler, or sends it no new requests and looks for none when it has
        ended."""
        if is_expected is self._expected.is_set():
            return
        if is_expected:
            self._expected.set()
            self._model_changed.set()
        else:
            self._expected.clear()
            if self.served is not None:
                self._serve(None)

    def pause(self, pause: SessionPause) -> None:
        """Tells the scheduler how an answer of a session has ended: with the next message, or alone
        if none comes, since a message costs twenty times what else a session does."""
        if self._outgoing is not None:
            if not self._pauses:
                asyncio.get_running_loop().call_later(PAUSE_S, self._send_pauses)
            self._pauses.append(encode_pause(pause))

    def _send_pauses(self) -> None:
        if self._pauses and self._outgoing is not None:
            self._send(pb.ConnectRequest())

    def _send(self, message: pb.ConnectRequest) -> None:
        assert self._outgoing is not None, "no stream"
        if self._pauses:
            message.session_pauses.extend(self._pauses)
            self._pauses.clear()
        self._outgoing.put_nowait(message)

    async def run(self) -> None:
        """Connects, and reconnects, until it is cancelled."""
        while True:
            await self._expected.wait()
            try:
                # One that was lost may not answer on its connection, and its host may be back.
                async with open_channel(self.address, tls=self._tls) as channel:
                    stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
                    served = await self._wait_for_model(channel, stub)
                    if served is not None:
                        await self._run_stream(stub, served)
            except TlsError as error:  # as while certificates are replaced
                logger.error("cannot connect to %s: %s", self.address, error)
            except Exception:  # a bug must not stop the router's reading
                logger.exception("the connection to %s failed", self.address)
            await asyncio.sleep(RECONNECT_AFTER_S)

    async def _wait_for_model(
        self, channel: grpc.aio.Channel, stub: scheduler_pb2_grpc.SchedulerServiceStub
    ) -> ServedModel | None:
        """Returns the model; None if it is not expected any more."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self._expected.is_set():
            try:
                return await self._models.fetch(self.address, stub)
            except (grpc.aio.AioRpcError, ValueError) as error:
                self.absence = _said_by_scheduler(error)
                self._log_waiting(channel, error)
            waited_s = loop.time() - began
            await asyncio.sleep(min(_MAX_POLL_S, max(_MIN_POLL_S, waited_s * _POLL_SHARE)))
        return None

    def _log_waiting(self, channel: grpc.aio.Channel, error: Exception) -> None:
        """Logs what is missing, when that changes."""
        if isinstance(error, ValueError):
            what = f"a usable model ({error})"
        elif channel.get_state() is grpc.ChannelConnectivity.READY:
            what = f"a worker to register with the scheduler at {self.address}"
        else:
            what = f"the scheduler at {self.address}"
        if what != self._waiting_for:
            logger.info("waiting for %s", what)
            self._waiting_for = what

    async def _run_stream(
        self, stub: scheduler_pb2_grpc.SchedulerServiceStub, served: ServedModel
    ) -> None:
        """Serves until the stream breaks."""
        outgoing: asyncio.Queue[pb.ConnectRequest | None] = asyncio.Queue()
        self._outgoing = outgoing
        call = stub.Connect(_drain(outgoing))
        self._heard = asyncio.get_running_loop().create_future()
        beside = [
            asyncio.create_task(self._watch_model(stub)),
            silence := asyncio.create_task(self._end_when_silent(call)),
        ]
        is_faulty = False
        try:
            self._serve(served)
            async for answer in call:
                self._take(answer)
            self._log_loss("the scheduler at %s has ended the stream", self.address)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not silence.done() or (task is not None and task.cancelling()):
                raise
            self._log_loss("lost the scheduler at %s: no heartbeat", self.address)
        except grpc.aio.AioRpcError as error:
            self._log_loss("lost the scheduler at %s: %s", self.address, _reason(error))
        except (RpcError, ValueError, LookupError) as error:
            is_faulty = True
            logger.warning("the scheduler at %s sent bad updates: %s", self.address, error)
        finally:
            call.cancel()
            outgoing.put_nowait(None)  # gRPC's task that reads the queue does not end by itself
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            self._lose(is_faulty=is_faulty)

    def _log_loss(self, message: str, *args: str) -> None:
        """Logs the end of a stream; the launcher itself logs those of models that it ends."""
        logger.log(logging.WARNING if self._expected.is_set() else logging.DEBUG, message, *args)

    def _take(self, answer: pb.ConnectResponse) -> None:
        self._last_at = asyncio.get_running_loop().time()
        if answer.model_changed:
            self._model_changed.set()
        elif not answer.heartbeat_interval_ns:
            self._dispatch(updates.decode(answer.updates))
        elif not self._heard.done():
            self._heard.set_result(answer.heartbeat_interval_ns)

    async def _end_when_silent(self, call: _Call) -> None:
        """Cancels a stream on which heartbeats have come, and nothing comes any more.

        A heartbeat waits behind the messages before it, which are signs of life as well. gRPC's
        pings would end the stream, too, when this process or the scheduler has no processor.
        """
        loop = asyncio.get_running_loop()
        longest_s = within_s = MISSED_HEARTBEATS * await self._heard / 1e9
        while within_s > 0:
            self._heard = loop.create_future()
            if await wait_for_first(self._heard, within_s=within_s):
                longest_s = within_s = MISSED_HEARTBEATS * self._heard.result() / 1e9
            else:
                within_s = self._last_at + longest_s - loop.time()
        call.cancel()

    def _lose(self, *, is_faulty: bool) -> None:
        self._outgoing = None
        self._pauses.clear()
        self._waiting_for = self.absence = ""
        lost, self._requests = self._requests, RequestTable[ActiveRequest]()
        self._serve(None)
        self._listener.lost(list(lost.values()), is_faulty=is_faulty)

    async def _watch_model(self, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        """Asks for the model when the scheduler says that it has changed, and now and then."""
        wait_s = self._model_poll_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._model_changed.wait()
            self._model_changed.clear()
            wait_s = self._model_poll_s
            try:
                served = await self._models.fetch(self.address, stub)
            except (grpc.aio.AioRpcError, ValueError) as error:
                self._doubt_model(error)
                continue
            self._serve(served)
            wait_s *= SERVED_POLLS

    def _doubt_model(self, error: Exception) -> None:
        self.absence = _said_by_scheduler(error)
        # A slow answer does not mean that the scheduler has lost its workers.
        is_slow = isinstance(error, grpc.aio.AioRpcError) and error.code() is not UNAVAILABLE
        if self.served is not None and not is_slow:
            logger.warning("%s serves no model any more: %s", self.address, _reason(error))
            self._serve(None)

    def _serve(self, served: ServedModel | None) -> None:
        if not self._expected.is_set():
            served = None
        if served == self.served:
            self.served = served  # its window may have changed
            self._listener.window_changed()
            return
        self.served = served
        if served is not None:
            self.last_served = served
            logger.info("serving %s through the scheduler at %s", served.name, self.address)
            self._waiting_for = ""
        self._listener.model_changed()

    def _dispatch(self, news: RequestUpdates) -> None:
        """Adds one step's updates to their requests; each request's task wakes once."""
        for request, finished in self._requests.apply(news):
            if finished.failure is not None:
                error = error_of(finished.failure, request)
                self._listener.failed(request, error, self)
            else:
                end = End(
                    finished.usage,
                    finished.timings,
                    speculation=finished.speculation,
                    arithmetic=finished.arithmetic,
                )
                request.end(end)


async def _drain(
    queue: asyncio.Queue[pb.ConnectRequest | None],
) -> AsyncIterator[pb.ConnectRequest]:
    while (message := await queue.get()) is not None:
        yield message


def _said_by_scheduler(error: Exception) -> str:
    """Returns the scheduler's reason for serving no model; "" for an error of gRPC or of this
    process."""
    if isinstance(error, grpc.aio.AioRpcError) and retry_after_s(error) is not None:
        return error.details() or ""
    return ""


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)

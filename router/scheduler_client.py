"""The router's end of one scheduler's API: one stream that carries all requests.

Keeps trying to reach the scheduler, learns from it which model is served, and hands the tokens of
each step to the requests that they belong to. What becomes of them when the stream breaks is for
`schedulers.py` to say.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Protocol

import grpc

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from router import scheduler_codec
from router.model import ServedModel
from router.model_client import ModelClient
from router.request import GenerationRequest
from rpc.client import open_channel
from rpc.errors import RpcError, retry_after_s
from rpc.tls import CLEAR, TlsConfig

logger = logging.getLogger(__name__)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
RECONNECT_AFTER_S = 0.5
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0)


class Owner(Protocol):
    """Who is told what becomes of a connection. Must not block."""

    def model_changed(self) -> None:
        """`served` has changed."""

    def window_changed(self) -> None:
        """`served` is the same model, perhaps with another effective window."""

    def lost(self, requests: list[GenerationRequest], *, is_faulty: bool) -> None:
        """The stream has broken, with these on it; faulty if what came on it made no sense."""

    def failed(
        self, request: GenerationRequest, error: RpcError, by: "SchedulerConnection"
    ) -> None:
        """The scheduler has ended a request by an error."""


class SchedulerConnection:
    """One scheduler: the model behind it, and the live requests on its stream."""

    def __init__(
        self,
        address: str,
        *,
        models: ModelClient,
        model_poll_s: float,
        owner: Owner,
        tls: TlsConfig = CLEAR,
    ) -> None:
        self.address = address
        self.served: ServedModel | None = None
        """What is served on the stream; None while nothing is."""
        self._model_poll_s = model_poll_s
        self._owner = owner
        self._tls = tls
        self._models = models
        self._live: dict[int, GenerationRequest] = {}
        self._outgoing: asyncio.Queue[pb.ConnectRequest | None] | None = None
        self._waiting_for = ""
        self.absence = ""
        """The scheduler's reason why it serves no model; "" if it serves one or does not answer."""

    @property
    def is_open(self) -> bool:
        """Whether there is a stream."""
        return self._outgoing is not None

    @property
    def num_live(self) -> int:
        return len(self._live)

    def submit(self, request: GenerationRequest) -> None:
        """Sends a request on the stream, which must be open; from now on its tokens arrive."""
        assert self._outgoing is not None, "no stream"
        self._live[request.handle] = request
        message = pb.ConnectRequest(add_request=scheduler_codec.add_request(request))
        self._outgoing.put_nowait(message)

    def abort(self, handle: int) -> None:
        """Ends a request; does nothing if it has ended."""
        if self._live.pop(handle, None) is not None and self._outgoing is not None:
            abort = pb.AbortRequest(handle=handle)
            self._outgoing.put_nowait(pb.ConnectRequest(abort_request=abort))

    def stop_sequence(self, handle: int, *, index: int, keep_tokens: int) -> None:
        """Ends one sequence; does nothing if the request has ended."""
        if handle in self._live and self._outgoing is not None:
            stop = pb.StopSequence(handle=handle, index=index, keep_tokens=keep_tokens)
            self._outgoing.put_nowait(pb.ConnectRequest(stop_sequence=stop))

    async def run(self) -> None:
        """Connects, and connects again, until it is cancelled."""
        async with open_channel(self.address, tls=self._tls) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            while True:
                try:
                    served = await self._wait_for_model(channel, stub)
                    await self._run_stream(stub, served)
                except Exception:  # a fault of ours must not leave the router deaf
                    logger.exception("the connection to %s failed", self.address)
                await asyncio.sleep(RECONNECT_AFTER_S)

    async def _wait_for_model(
        self, channel: grpc.aio.Channel, stub: scheduler_pb2_grpc.SchedulerServiceStub
    ) -> ServedModel:
        for attempt in itertools.count():
            try:
                return await self._models.fetch(stub)
            except (grpc.aio.AioRpcError, ValueError) as error:
                self.absence = _said_by_scheduler(error)
                self._log_waiting(channel, error)
            await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
        raise AssertionError("unreachable")

    def _log_waiting(self, channel: grpc.aio.Channel, error: Exception) -> None:
        """Says what is missing, when that changes."""
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
        watch = asyncio.create_task(self._watch_model(stub))
        is_faulty = False
        try:
            self._serve(served)
            async for answer in call:
                self._dispatch(answer.step_outputs)
            logger.warning("the scheduler at %s has ended the stream", self.address)
        except grpc.aio.AioRpcError as error:
            logger.warning("lost the scheduler at %s: %s", self.address, _reason(error))
        except (RpcError, ValueError, LookupError) as error:
            is_faulty = True
            logger.warning("the scheduler at %s makes no sense: %s", self.address, error)
        finally:
            call.cancel()
            outgoing.put_nowait(None)  # gRPC's task that reads it does not end by itself
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            self._lose(is_faulty=is_faulty)

    def _lose(self, *, is_faulty: bool) -> None:
        self._outgoing = None
        self._waiting_for = self.absence = ""
        lost, self._live = self._live, {}
        self._serve(None)
        self._owner.lost(list(lost.values()), is_faulty=is_faulty)

    async def _watch_model(self, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        """Notices that the last worker has gone, and what the next one serves."""
        while True:
            await asyncio.sleep(self._model_poll_s)
            try:
                served = await self._models.fetch(stub)
            except (grpc.aio.AioRpcError, ValueError) as error:
                self._doubt_model(error)
                continue
            self._serve(served)

    def _doubt_model(self, error: Exception) -> None:
        self.absence = _said_by_scheduler(error)
        # A scheduler that is slow to answer has not lost its workers.
        is_slow = isinstance(error, grpc.aio.AioRpcError) and error.code() is not UNAVAILABLE
        if self.served is not None and not is_slow:
            logger.warning("%s serves no model any more: %s", self.address, _reason(error))
            self._serve(None)

    def _serve(self, served: ServedModel | None) -> None:
        if served == self.served:
            self.served = served  # its window may have changed
            self._owner.window_changed()
            return
        self.served = served
        if served is not None:
            logger.info("serving %s through the scheduler at %s", served.name, self.address)
            self._waiting_for = ""
        self._owner.model_changed()

    def _dispatch(self, outputs: pb.StepOutputs) -> None:
        """Puts one step's news into its requests; each request's task wakes once."""
        for admitted in outputs.admitted:
            request = self._live.get(admitted.handle)
            if request is not None:
                request.admit(max_tokens=admitted.max_tokens)
        for prompt_run in outputs.prompt_logprobs:
            request = self._live.get(prompt_run.handle)
            if request is not None:
                found = [scheduler_codec.token_logprobs(entry) for entry in prompt_run.logprobs]
                request.add_prompt_logprobs(prompt_run.first_position, found)
        for run in scheduler_codec.token_runs(outputs):
            request = self._live.get(run.handle)
            if request is not None:
                request.add_tokens(run.index, run.token_ids, run.logprobs)
        for sequence in outputs.finished_sequences:
            request = self._live.get(sequence.handle)
            if request is not None:
                request.end_sequence(sequence.index, scheduler_codec.finish(sequence))
        for finished in outputs.finished_requests:
            self._end(finished)

    def _end(self, finished: pb.RequestFinished) -> None:
        request = self._live.pop(finished.handle, None)
        if request is None:
            return
        if finished.code:
            self._owner.failed(request, scheduler_codec.error(finished, request), self)
        else:
            request.end(scheduler_codec.ended(finished))


async def _drain(
    queue: asyncio.Queue[pb.ConnectRequest | None],
) -> AsyncIterator[pb.ConnectRequest]:
    while (message := await queue.get()) is not None:
        yield message


def _said_by_scheduler(error: Exception) -> str:
    """Returns why the scheduler serves nothing; "" if gRPC failed, or something here."""
    if isinstance(error, grpc.aio.AioRpcError) and retry_after_s(error) is not None:
        return error.details() or ""
    return ""


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)

"""The router's end of the scheduler's API: one stream that carries all requests.

Keeps trying to reach the scheduler, learns from it which model is served, and hands the tokens of
each step to the requests that they belong to. When the stream breaks, its requests end.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable

import grpc

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from protos.worker.v1 import worker_pb2
from router.model import ServedModel
from router.model_client import ModelClient
from router.outputs import End, Finish, FinishReason, Timings, TokenLogprobs, Usage
from router.request import GenerationRequest
from router.sampling import BeamSearch
from rpc import structured_output
from rpc.client import open_channel
from rpc.columns import pack_float32, pack_int32, unpack_int32, unpack_int64
from rpc.errors import RpcError, Unavailable, from_code
from rpc.tls import CLEAR, TlsConfig

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
"""What clients are told while nobody serves."""
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
RECONNECT_AFTER_S = 0.5
REMIND_EVERY_S = 10.0
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0)

_REASONS = {
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_STOP_TOKEN: FinishReason.STOP_TOKEN,
    pb.FINISH_REASON_STOP_STRING: FinishReason.STOP_STRING,
}


class SchedulerConnection:
    """One scheduler: the model behind it, and the live requests on its stream."""

    def __init__(
        self,
        address: str,
        *,
        tokenizer_threads: int,
        model_poll_s: float,
        on_serving: Callable[[bool], None],
        tls: TlsConfig = CLEAR,
    ) -> None:
        """`on_serving` is told whenever requests begin or cease to be taken."""
        self.address = address
        self._model_poll_s = model_poll_s
        self._on_serving = on_serving
        self._tls = tls
        self._models = ModelClient(tokenizer_threads=tokenizer_threads)
        self._handles = itertools.count(1)
        self._live: dict[int, GenerationRequest] = {}
        self._outgoing: asyncio.Queue[pb.ConnectRequest | None] | None = None
        self._served: ServedModel | None = None
        self._waiting_for = ""
        self._reminded_at = 0.0

    @property
    def model(self) -> ServedModel:
        """Raises Unavailable while nobody serves."""
        if self._served is None:
            what = "worker" if self._outgoing is not None else "scheduler"
            raise Unavailable(f"no {what} serves at the moment", RETRY_AFTER_S)
        return self._served

    @property
    def num_live(self) -> int:
        return len(self._live)

    def new_handle(self) -> int:
        return next(self._handles)

    def submit(self, request: GenerationRequest) -> None:
        """Sends a request; from now on its tokens arrive. Raises Unavailable."""
        if self._outgoing is None:
            raise Unavailable("the scheduler is lost", RETRY_AFTER_S)
        message = pb.ConnectRequest(add_request=_add_request(request))
        self._live[request.handle] = request
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
            try:
                while True:
                    try:
                        await self._wait_for_model(channel, stub)
                        await self._run_stream(stub)
                    except Exception:  # a fault of ours must not leave the router deaf
                        logger.exception("the connection to %s failed", self.address)
                    await asyncio.sleep(RECONNECT_AFTER_S)
            finally:
                self._models.close()

    async def _wait_for_model(
        self, channel: grpc.aio.Channel, stub: scheduler_pb2_grpc.SchedulerServiceStub
    ) -> None:
        for attempt in itertools.count():
            try:
                self._served = await self._models.fetch(stub)
                return
            except (grpc.aio.AioRpcError, ValueError) as error:
                self._log_waiting(channel, error)
            await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])

    def _log_waiting(self, channel: grpc.aio.Channel, error: Exception) -> None:
        """Says what is missing when that changes, and every ten seconds."""
        if isinstance(error, ValueError):
            what = f"a usable model ({error})"
        elif channel.get_state() is grpc.ChannelConnectivity.READY:
            what = f"a worker to register with the scheduler at {self.address}"
        else:
            what = f"the scheduler at {self.address}"
        now = time.monotonic()
        if what != self._waiting_for or now - self._reminded_at >= REMIND_EVERY_S:
            logger.info("waiting for %s", what)
            self._waiting_for, self._reminded_at = what, now

    async def _run_stream(self, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        """Serves until the stream breaks."""
        outgoing: asyncio.Queue[pb.ConnectRequest | None] = asyncio.Queue()
        self._outgoing = outgoing
        call = stub.Connect(_drain(outgoing))
        watch = asyncio.create_task(self._watch_model(stub))
        self._say_serving()
        try:
            async for answer in call:
                self._dispatch(answer.step_outputs)
            logger.warning("the scheduler at %s has ended the stream", self.address)
        except (grpc.aio.AioRpcError, RpcError, ValueError, LookupError) as error:
            logger.warning("lost the scheduler at %s: %s", self.address, _reason(error))
        finally:
            call.cancel()
            outgoing.put_nowait(None)  # gRPC's task that reads it does not end by itself
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            self._lose()

    def _lose(self) -> None:
        was_serving = self._served is not None
        self._outgoing = self._served = None
        self._waiting_for = ""
        if was_serving:
            self._on_serving(False)
        lost, self._live = self._live, {}
        for request in lost.values():
            request.fail(Unavailable("the scheduler is lost", RETRY_AFTER_S))

    async def _watch_model(self, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        """Notices that the last worker has gone, and what the next one serves."""
        while True:
            await asyncio.sleep(self._model_poll_s)
            try:
                served = await self._models.fetch(stub)
            except (grpc.aio.AioRpcError, ValueError) as error:
                self._doubt_model(error)
                continue
            if served != self._served:
                self._served = served
                self._say_serving()

    def _doubt_model(self, error: Exception) -> None:
        # A scheduler that is slow to answer has not lost its workers.
        is_slow = isinstance(error, grpc.aio.AioRpcError) and error.code() is not UNAVAILABLE
        if self._served is not None and not is_slow:
            logger.warning("no model is served any more: %s", _reason(error))
            self._served = None
            self._on_serving(False)

    def _say_serving(self) -> None:
        logger.info("serving %s through the scheduler at %s", self.model.name, self.address)
        self._waiting_for = ""
        self._on_serving(True)

    def _dispatch(self, outputs: pb.StepOutputs) -> None:
        """Puts one step's news into its requests; each request's task wakes once."""
        live = self._live
        token_ids: list[int] = unpack_int32(outputs.token_ids).tolist()
        logprobs = {entry.row: _logprobs(entry) for entry in outputs.logprobs}
        for run in outputs.prompt_logprobs:
            request = live.get(run.handle)
            if request is not None:
                found = [_logprobs(entry) for entry in run.logprobs]
                request.add_prompt_logprobs(run.first_position, found)
        start = 0
        for handle, index, num_tokens in zip(
            unpack_int64(outputs.handles).tolist(),
            unpack_int32(outputs.indices).tolist(),
            unpack_int32(outputs.num_tokens).tolist(),
            strict=True,
        ):
            end = start + num_tokens
            request = live.get(handle)
            if request is not None:
                rows = range(start, end) if logprobs else ()
                of_run = [logprobs[row] for row in rows if row in logprobs]
                request.add_tokens(index, token_ids[start:end], of_run)
            start = end
        for sequence in outputs.finished_sequences:
            request = live.get(sequence.handle)
            if request is not None:
                request.end_sequence(sequence.index, _finish(sequence))
        for finished in outputs.finished_requests:
            self._end(finished)

    def _end(self, finished: pb.RequestFinished) -> None:
        request = self._live.pop(finished.handle, None)
        if request is None:
            return
        if finished.code:
            request.fail(_error(finished))
        else:
            request.end(_ended(finished))


async def _drain(
    queue: asyncio.Queue[pb.ConnectRequest | None],
) -> AsyncIterator[pb.ConnectRequest]:
    while (message := await queue.get()) is not None:
        yield message


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)


def _add_request(request: GenerationRequest) -> pb.AddRequest:
    params = request.params
    traceparent, tracestate = request.trace_context
    message = pb.AddRequest(
        handle=request.handle,
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling_params=worker_pb2.SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            seed=params.seed,
            min_tokens=params.min_tokens,
            stop_token_ids=params.stop_token_ids,
            num_logprobs=params.num_logprobs,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            typical_p=params.typical_p,
            logit_bias_token_ids=pack_int32([token_id for token_id, _ in params.logit_bias]),
            logit_biases=pack_float32([bias for _, bias in params.logit_bias]),
            allowed_token_ids=pack_int32(params.allowed_token_ids),
            bad_words=[worker_pb2.TokenRun(token_ids=pack_int32(run)) for run in params.bad_words],
            num_prompt_logprobs=params.num_prompt_logprobs,
        ),
        max_tokens=params.max_tokens,
        num_sequences=params.num_sequences,
        beam_search=_beam_search(params.beam_search),
        timeout_ns=request.timeout_ns,
        tenant=request.tenant,
        priority=request.priority,
        cache_salt=request.cache_salt,
        trace_context=worker_pb2.TraceContext(traceparent=traceparent, tracestate=tracestate),
    )
    structured_output.write(message.sampling_params, params.structured_output)
    return message


def _beam_search(search: BeamSearch | None) -> pb.BeamSearch | None:
    if search is None:
        return None
    return pb.BeamSearch(
        width=search.width,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
    )


def _logprobs(entry: worker_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(
        entry.logprob, entry.rank, list(entry.top_token_ids), list(entry.top_logprobs)
    )


def _finish(sequence: pb.SequenceFinished) -> Finish:
    return Finish(
        _REASONS.get(sequence.reason, FinishReason.ERROR),
        stop_token_id=sequence.stop_token_id if sequence.HasField("stop_token_id") else None,
        error_message=sequence.error_message,
        score=sequence.score if sequence.HasField("score") else None,
    )


def _ended(finished: pb.RequestFinished) -> End:
    usage, timings = finished.usage, finished.timings
    return End(
        Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        Timings(timings.queued_ns, timings.prefill_ns, timings.decode_ns, timings.preempted_ns),
    )


def _error(finished: pb.RequestFinished) -> RpcError:
    has_retry = finished.HasField("retry_after_ns")
    return from_code(
        finished.code, finished.message, finished.retry_after_ns / 1e9 if has_retry else None
    )

"""The scheduler's side of one worker's WorkerService."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import NamedTuple, cast

import grpc

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.description_bounds import check_description
from signalbox_contract.errors import Code, InvalidArgument, cut
from signalbox_contract.model import ModelInfo, WorkerCapacity, decode_capacity, decode_model
from signalbox_contract.step import encode_step
from signalbox_contract.step_result import StepResult, decode_result
from signalbox_contract.structured_output import constraint_codec, grammar_cost
from signalbox_contract.tokenizer_files import TokenizerTooLarge, read_files
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig
from signalbox_scheduler.insight.recorder import UNRECORDED, WorkerRecorder
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.worker_grammars import Preparation
from signalbox_scheduler.results import result_validation
from signalbox_scheduler.workers.engine.adapter_client import WorkerAdapterClient
from signalbox_scheduler.workers.engine.probe_step import make_check_plan

logger = logging.getLogger(__name__)

DIAL_TIMEOUT_S = 10.0
INIT_TIMEOUT_S = 120.0
"""Allocating and touching pools of many gigabytes takes a while."""

PREPARE_TIMEOUT_S = 60.0
"""Seconds for a compilation. The router admits only what compiles in a few seconds of CPU time,
which take longer on a busy machine."""
CHECK_TIMEOUT_S = 20.0
"""Seconds for a step of one token by a worker that has failed before and may start slowly."""

RECONNECT_INTERVAL_S = 2.0
"""Seconds within which a step stream that breaks twice, with no answer in between, is given up."""

_FAILS_CHECK = "it fails to compute a single token"

_TRANSPORT_FAILURES = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    # What gRPC makes of a break during a write: https://github.com/grpc/grpc/issues/36066
    grpc.StatusCode.INTERNAL,
)


class WorkerLostError(Exception):
    """The worker cannot go on; its KV is lost. Says why in one line."""

    def __init__(self, reason: str) -> None:
        """Takes a reason, which may have words of the worker."""
        super().__init__(cut(reason))


class _SentStep(NamedTuple):
    """A step that is not answered, and the message that it was sent as."""

    plan: StepPlan
    request: pb.ExecuteModelRequest


class LeaseClient:
    """One lease's calls.

    Steps are answered in order. When the step stream breaks it is opened again and the
    unanswered steps are sent again, which the worker takes for what it is; if that does not help,
    the worker is lost.
    """

    def __init__(
        self,
        *,
        address: str,
        epoch: int,
        recorder: WorkerRecorder = UNRECORDED,
        tls: TlsConfig = CLEAR,
        certified_name: str | None = None,
    ) -> None:
        """`certified_name` is what its certificate must be for, if not the address's host."""
        self.address = address
        self.epoch = epoch
        self.certified_name = certified_name or ""
        self.recorder = recorder
        self._channel = open_channel(address, tls=tls, server_name=certified_name)
        self._stub = pb_grpc.WorkerServiceStub(self._channel)
        self.adapters = WorkerAdapterClient(self._stub, address=address, epoch=epoch)
        self._unanswered: deque[_SentStep] = deque()
        self._failed_all_before = True
        """True if the last step that computed something failed as a whole, or there was none."""
        self._call: grpc.aio.StreamStreamCall[pb.ExecuteModelRequest, pb.ExecuteModelResponse]
        self._reconnected_at = float("-inf")
        self._is_reconnecting = False
        self._vocab_size = self._num_outputs = self._num_token_outputs = 0  # until `info` has asked
        self._makes_token_vectors_alone = False
        self._groups: tuple[CacheGroup, ...] = (FULL_GROUP,)

    async def info(self) -> tuple[ModelInfo, WorkerCapacity]:
        """Asks the worker what it is.

        Raises WorkerLostError if another one answers, and ValueError if it says too much.
        """
        try:
            answer = await self._stub.GetWorkerInfo(
                pb.GetWorkerInfoRequest(), timeout=DIAL_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise WorkerLostError(f"cannot reach it: {error.details()}") from None
        if answer.epoch != self.epoch:
            raise WorkerLostError("another worker answers there")
        check_description(answer)
        self._vocab_size = answer.model.vocab_size
        self._num_outputs = answer.model.pooling.num_outputs
        self._num_token_outputs = answer.model.pooling.num_token_outputs
        self._makes_token_vectors_alone = answer.model.pooling.task == "token_embed"
        capacity = decode_capacity(answer.capacity)
        self._groups = capacity.groups
        return decode_model(answer.model), capacity

    async def tokenizer_files(self) -> dict[str, bytes]:
        call = self._stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=DIAL_TIMEOUT_S)
        try:
            return await read_files(call)
        except grpc.aio.AioRpcError as error:
            raise WorkerLostError(f"cannot fetch its tokenizer: {error.details()}") from None
        except TokenizerTooLarge as error:
            call.cancel()
            raise WorkerLostError(str(error)) from None

    async def open(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Opens the lease: empty pools, step ids from 1."""
        try:
            await self._stub.InitCacheEngine(
                pb.InitCacheEngineRequest(
                    epoch=self.epoch, num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks
                ),
                timeout=INIT_TIMEOUT_S,
            )
        except grpc.aio.AioRpcError as error:
            raise WorkerLostError(f"cannot open its cache: {error.details()}") from None
        self._call = self._stub.ExecuteModel()

    async def check(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Lets the worker compute one token that no request waits for, before the lease is opened.

        Raises WorkerLostError. It is not on record: the scheduler hears of its outcome alone.
        """
        await self.open(num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks)
        plan = make_check_plan(
            pools=self._num_outputs > 0,
            is_per_token=self._makes_token_vectors_alone,
            groups=self._groups,
        )
        request = encode_step(plan.to_step(epoch=self.epoch))
        self._unanswered.append(_SentStep(plan, request))
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._call.write(request)
                response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise WorkerLostError(f"{_FAILS_CHECK}: {error.details()}") from None
        except (asyncio.InvalidStateError, TimeoutError):
            raise WorkerLostError(f"{_FAILS_CHECK} within {CHECK_TIMEOUT_S:g} s") from None
        finally:
            self._call.cancel()
        if response is grpc.aio.EOF:
            raise WorkerLostError(f"{_FAILS_CHECK}: it closed the step stream")
        self._checked(cast(pb.ExecuteModelResponse, response))
        self._unanswered.clear()

    async def send(self, plan: StepPlan) -> None:
        """Sends a step. A broken stream is left to `read`, which sees it too."""
        request = encode_step(plan.to_step(epoch=self.epoch))
        self._unanswered.append(_SentStep(plan, request))
        self.recorder.sent(request)
        if not self._is_reconnecting:  # else `_reconnect` sends it: gRPC takes one write at a time
            await self._write(request)

    async def _write(self, request: pb.ExecuteModelRequest) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(request)

    async def prepare(self, preparation: Preparation) -> str:
        """Has a structured output compiled; returns why it cannot be, or an empty text.

        Raises WorkerLostError.
        """
        request = _prepare_request(preparation, epoch=self.epoch)
        try:
            answer = await self._stub.PrepareGrammar(request, timeout=PREPARE_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"it takes more than {PREPARE_TIMEOUT_S:g} s"
            raise WorkerLostError(f"it compiles nothing: {error.details()}") from None
        fault: str = answer.fault
        return fault

    async def read(self) -> StepResult:
        """Waits for the next result. Raises WorkerLostError."""
        while True:
            try:
                response = await self._call.read()
            except grpc.aio.AioRpcError as error:
                await self._reconnect(error.code(), error.details() or "")
                continue
            if response is grpc.aio.EOF:
                await self._reconnect(grpc.StatusCode.UNAVAILABLE, "it closed the step stream")
                continue
            self._reconnected_at = float("-inf")
            result = self._checked(cast(pb.ExecuteModelResponse, response))
            self._unanswered.popleft()
            self.recorder.received(response)
            return result

    def _checked(self, response: pb.ExecuteModelResponse) -> StepResult:
        """Decodes a result. What is wrong with it must not reach requests, nor other workers."""
        try:
            result = decode_result(response)
        except InvalidArgument as error:
            raise WorkerLostError(f"its answer cannot be read: {error}") from None
        if response.epoch != self.epoch:
            raise WorkerLostError(f"it answered for epoch {response.epoch:#x}, of another lease")
        expected = self._unanswered[0].plan.step_id if self._unanswered else None
        if result.step_id != expected:
            raise WorkerLostError(f"it answered step {result.step_id} instead of {expected}")
        plan = self._unanswered[0].plan
        if fault := result_validation.find_fault(
            plan,
            result,
            vocab_size=self._vocab_size,
            num_outputs=self._num_outputs,
            num_token_outputs=self._num_token_outputs,
        ):
            raise WorkerLostError(f"its answer to step {result.step_id} cannot be used: {fault}")
        if result.failures or self._failed_all_before:
            self._judge_failures(plan, result)
        return result

    def _judge_failures(self, plan: StepPlan, result: StepResult) -> None:
        """Raises WorkerLostError if the fault is rather the worker's than that of its requests.

        A worker that fails some sequences of a step has computed the others, so the failures are
        believed. If all fail, they are if the step before went well and there is one request, or
        all have lost their states; and if the one request computes alone since it is a suspect.
        """
        # A suspect in a step with others has lost its state in the step before.
        live = {
            seq.group: None
            for seq in plan.seqs
            if not seq.is_finished and plan.is_alone is (seq.group.suspicion is not None)
        }
        if not live:
            return
        fails_all = result_validation.fails_all(plan, result)
        loses_states = any(one.code is Code.ABORTED for one in result.failures.values())
        believed = not self._failed_all_before and (len(live) == 1 or loses_states)
        if plan.is_alone and not loses_states:
            believed = len(live) == 1
        if fails_all and not believed:
            raise WorkerLostError(
                f"it failed every sequence of step {plan.step_id}: "
                f"{next(iter(result.failures.values())).message}"
            )
        self._failed_all_before = fails_all

    async def close(self) -> None:
        if hasattr(self, "_call"):
            self._call.cancel()
        await self._channel.close()

    async def _reconnect(self, code: grpc.StatusCode, details: str) -> None:
        now = time.monotonic()
        is_again = now - self._reconnected_at < RECONNECT_INTERVAL_S
        if code not in _TRANSPORT_FAILURES or is_again:
            raise WorkerLostError(f"its step stream ended: {code.name}: {details}")
        # A worker that has drained closes its side just before it leaves.
        level = logging.WARNING if self._unanswered else logging.INFO
        logger.log(level, "step stream to %s broke (%s); opening it again", self.address, details)
        self._reconnected_at = now
        self._call = self._stub.ExecuteModel()
        self._is_reconnecting, num_sent = True, 0
        while num_sent < len(self._unanswered):  # `send` may add to them meanwhile
            await self._write(self._unanswered[num_sent].request)
            num_sent += 1
        self._is_reconnecting = False


def _prepare_request(preparation: Preparation, *, epoch: int) -> pb.PrepareGrammarRequest:
    message = pb.PrepareGrammarRequest(epoch=epoch, cost=grammar_cost.encode(preparation.cost))
    constraint_codec.encode(message.structured_output, preparation.constraint)
    for constraint in preparation.forgotten:
        constraint_codec.encode(message.forgotten.add(), constraint)
    return message

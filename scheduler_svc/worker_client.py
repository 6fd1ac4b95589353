"""The scheduler's side of one worker's WorkerService."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import cast

import grpc

from protos.worker.v1 import worker_pb2 as pb
from protos.worker.v1 import worker_pb2_grpc as pb_grpc
from rpc.client import open_channel
from rpc.errors import InvalidArgument
from rpc.tls import CLEAR, TlsConfig
from scheduler_svc import worker_codec
from scheduler_svc.model import ModelInfo, TokenizerFiles, WorkerCapacity
from scheduler_svc.plan import StepAnswer, StepPlan
from scheduler_svc.recording import UNRECORDED, WorkerRecorder

logger = logging.getLogger(__name__)

DIAL_TIMEOUT_S = 10.0
INIT_TIMEOUT_S = 120.0
"""Allocating and touching pools of many gigabytes takes a while."""

RECONNECT_INTERVAL_S = 2.0
"""A step stream that breaks again so soon, with no answer in between, is given up."""

_TRANSPORT_FAILURES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class WorkerLostError(Exception):
    """The worker cannot go on; its KV is lost. Says why in one line."""


class WorkerClient:
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
        self.recorder = recorder
        self._channel = open_channel(address, tls=tls, server_name=certified_name)
        self._stub = pb_grpc.WorkerServiceStub(self._channel)
        self._unanswered: deque[pb.ExecuteModelRequest] = deque()
        self._call: grpc.aio.StreamStreamCall[pb.ExecuteModelRequest, pb.ExecuteModelResponse]
        self._reconnected_at = float("-inf")
        self._vocab_size = 0  # until `info` has asked

    async def info(self) -> tuple[ModelInfo, WorkerCapacity]:
        """Asks the worker what it is. Raises WorkerLostError if another one answers."""
        try:
            answer = await self._stub.GetWorkerInfo(
                pb.GetWorkerInfoRequest(), timeout=DIAL_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise WorkerLostError(f"cannot reach it: {error.details()}") from None
        if answer.epoch != self.epoch:
            raise WorkerLostError("another worker answers there")
        self._vocab_size = answer.model.vocab_size
        return worker_codec.model_info(answer.model), worker_codec.capacity(answer.capacity)

    async def tokenizer_files(self) -> TokenizerFiles:
        files: dict[str, bytearray] = {}
        try:
            call = self._stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=DIAL_TIMEOUT_S)
            async for part in call:
                files.setdefault(part.file_name, bytearray()).extend(part.chunk)
        except grpc.aio.AioRpcError as error:
            raise WorkerLostError(f"cannot fetch its tokenizer: {error.details()}") from None
        return {name: bytes(content) for name, content in files.items()}

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

    async def send(self, plan: StepPlan) -> None:
        """Sends a step. A broken stream is left to `read`, which sees it too."""
        request = worker_codec.execute_model_request(plan, epoch=self.epoch)
        self._unanswered.append(request)
        self.recorder.sent(request)
        worker_codec.set_trace_context(request, plan)  # not on record: a replay belongs to no trace
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(request)

    async def read(self) -> StepAnswer:
        """Waits for the next answer. Raises WorkerLostError."""
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
            answer = self._checked(cast(pb.ExecuteModelResponse, response))
            self._unanswered.popleft()
            self.recorder.received(response)
            return answer

    def _checked(self, response: pb.ExecuteModelResponse) -> StepAnswer:
        """Decodes an answer. What is wrong with it must not reach requests, nor other workers."""
        try:
            answer = worker_codec.step_answer(response)
        except InvalidArgument as error:
            raise WorkerLostError(f"its answer cannot be read: {error}") from None
        expected = self._unanswered[0].step_id if self._unanswered else None
        if answer.step_id != expected:
            raise WorkerLostError(f"it answered step {answer.step_id} instead of {expected}")
        if fault := answer.find_fault(vocab_size=self._vocab_size):
            raise WorkerLostError(f"its answer to step {answer.step_id} is of no use: {fault}")
        return answer

    async def close(self) -> None:
        if hasattr(self, "_call"):
            self._call.cancel()
        await self._channel.close()

    async def _reconnect(self, code: grpc.StatusCode, details: str) -> None:
        now = time.monotonic()
        is_again = now - self._reconnected_at < RECONNECT_INTERVAL_S
        if code not in _TRANSPORT_FAILURES or is_again:
            raise WorkerLostError(f"its step stream ended: {code.name}: {details}")
        logger.warning("step stream to %s broke (%s); opening it again", self.address, details)
        self._reconnected_at = now
        self._call = self._stub.ExecuteModel()
        for request in list(self._unanswered):
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._call.write(request)

"""WorkerService: decodes, calls the worker, encodes.

ExecuteModel reads and answers at the same time, so that the next step is on its way while one runs.
A stream that breaks stops neither: the worker goes on, and its step log has the answers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc

from signalbox_contract.errors import RpcError
from signalbox_contract.model import (
    Adapter,
    decode_adapter,
    encode_adapter,
    encode_capacity,
    encode_model,
)
from signalbox_contract.step import decode_step
from signalbox_contract.step_result import encode_result
from signalbox_contract.structured_output import constraint_codec, grammar_cost
from signalbox_contract.tokenizer_files import split_files
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc
from signalbox_rpc.interceptors.peer_roles import names_of
from signalbox_worker.lease.step_log import Answer
from signalbox_worker.service import worker_codec
from signalbox_worker.service.worker import Worker

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["WorkerService"].full_name

NUM_QUEUED_ANSWERS = 1
"""Answers that may wait beside the awaited one; no further step is read then."""

Context = grpc.aio.ServicerContext[object, object]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Serves one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def GetWorkerInfo(
        self, request: pb.GetWorkerInfoRequest, context: Context
    ) -> pb.GetWorkerInfoResponse:
        worker = self._worker
        return pb.GetWorkerInfoResponse(
            epoch=worker.epoch,
            model=encode_model(worker.model),
            capacity=encode_capacity(worker.announced_capacity),
            memory=worker_codec.encode_memory(worker.memory(), worker.capacity),
        )

    async def InitCacheEngine(
        self, request: pb.InitCacheEngineRequest, context: Context
    ) -> pb.InitCacheEngineResponse:
        await self._worker.init_cache_engine(
            epoch=request.epoch,
            num_gpu_blocks=request.num_gpu_blocks,
            num_cpu_blocks=request.num_cpu_blocks,
        )
        return pb.InitCacheEngineResponse()

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        for name, chunk in split_files(self._worker.tokenizer_files):
            yield pb.GetTokenizerResponse(file_name=name, chunk=chunk)

    async def ExecuteModel(
        self, requests: AsyncIterator[pb.ExecuteModelRequest], context: Context
    ) -> AsyncIterator[pb.ExecuteModelResponse]:
        answers: asyncio.Queue[Answer | Exception | None] = asyncio.Queue(NUM_QUEUED_ANSWERS)
        reader = asyncio.create_task(self._read(requests, answers))
        try:
            while (answer := await answers.get()) is not None:
                if isinstance(answer, Exception):
                    raise answer
                # The answer belongs to the log as well: this stream's end must not cancel it.
                yield encode_result(await asyncio.shield(answer))
        finally:
            reader.cancel()

    async def PrepareGrammar(
        self, request: pb.PrepareGrammarRequest, context: Context
    ) -> pb.PrepareGrammarResponse:
        fault = await self._worker.grammars(epoch=request.epoch).prepared(
            constraint_codec.decode(request.structured_output),
            grammar_cost.decode(request.cost),
            forgotten=[constraint_codec.decode(one) for one in request.forgotten],
        )
        return pb.PrepareGrammarResponse(fault=fault or "")

    async def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: Context
    ) -> pb.LoadAdapterResponse:
        adapter = await self._worker.adapters.load(
            epoch=request.epoch,
            name=request.name,
            path=request.path,
            loaded_at_ns=request.loaded_at_ns,
        )
        return pb.LoadAdapterResponse(adapter=encode_adapter(adapter))

    async def ReadAdapter(
        self, request: pb.ReadAdapterRequest, context: Context
    ) -> AsyncIterator[pb.ReadAdapterResponse]:
        adapter = Adapter(name=request.name, sha256=request.sha256)
        async for chunk in self._worker.adapters.read(epoch=request.epoch, adapter=adapter):
            yield pb.ReadAdapterResponse(chunk=pb.AdapterChunk(**chunk._asdict()))

    async def SendAdapter(
        self, requests: AsyncIterator[pb.SendAdapterRequest], context: Context
    ) -> pb.SendAdapterResponse:
        try:
            header = (await anext(requests, pb.SendAdapterRequest())).header
            await self._worker.adapters.receive(
                epoch=header.epoch,
                adapter=decode_adapter(header.adapter),
                chunks=worker_codec.adapter_chunks(requests),
            )
        except RpcError:
            # If the call ended while the scheduler writes, gRPC's client would replace this status
            # with INTERNAL (https://github.com/grpc/grpc/issues/36066).
            async for _ in requests:
                pass
            raise
        return pb.SendAdapterResponse()

    async def UnloadAdapter(
        self, request: pb.UnloadAdapterRequest, context: Context
    ) -> pb.UnloadAdapterResponse:
        adapter = Adapter(name=request.name, sha256=request.sha256)
        await self._worker.adapters.unload(epoch=request.epoch, adapter=adapter)
        return pb.UnloadAdapterResponse()

    async def ReadBlocks(
        self, request: pb.ReadBlocksRequest, context: Context
    ) -> AsyncIterator[pb.ReadBlocksResponse]:
        reading = self._worker.read_blocks(request.ticket, names_of(context))
        async with contextlib.aclosing(reading) as parts:
            async for part in parts:
                yield pb.ReadBlocksResponse(**part._asdict())

    async def Profile(
        self, request: pb.ProfileRequest, context: Context
    ) -> AsyncIterator[pb.ProfileResponse]:
        profile = await self._worker.profile(worker_codec.decode_profile_options(request))
        for response in worker_codec.encode_profile(profile):
            yield response

    async def _read(
        self,
        requests: AsyncIterator[pb.ExecuteModelRequest],
        answers: "asyncio.Queue[Answer | Exception | None]",
    ) -> None:
        """Submits each step; an error is raised after the answers to earlier steps."""
        try:
            async for request in requests:
                await answers.put(self._worker.submit(decode_step(request)))
        except Exception as error:
            await answers.put(error)
        else:
            await answers.put(None)

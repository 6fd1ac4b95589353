"""The service of vllm.grpc.engine, as smg-grpc-proto ships it: decode, call, encode.

It serves the same generations and embeddings as inference.v1 and the HTTP API. Profiling and events
of the cache are not served; gateways work without them.
"""

import datetime
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial

from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from signalbox_contract.errors import Cancelled, Unimplemented
from signalbox_router.apis.vllm import info_codec, request_codec
from signalbox_router.apis.vllm.response_codec import Answer
from signalbox_router.apis.vllm.tokenizer_archive import TokenizerArchives
from signalbox_router.generation.call_context import COMPLETION, EMBEDDINGS, CallContext
from signalbox_router.generation.generator import Generator
from signalbox_router.generation.pooler import PoolingService
from signalbox_router.generation.pooling.calls import EmbedCall
from signalbox_router.insight.request_span import rpc_transport
from signalbox_router.limits.payers import grpc_address
from signalbox_router.limits.tenants import Caller, Tenants
from signalbox_router.requests.api_request import ApiRequest, PromptTokens
from signalbox_router.schedulers.load_client import LoadClient
from signalbox_router.schedulers.served_models import GENERATING
from signalbox_rpc.interceptors.call_handlers import Context
from signalbox_rpc.limits.large_messages import LargeMessages
from signalbox_rpc.telemetry import tracing

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["VllmEngine"].full_name
OPERATIONS = {f"/{SERVICE_NAME}/Generate": COMPLETION, f"/{SERVICE_NAME}/Embed": EMBEDDINGS}


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """Serves vllm.grpc.engine by a `Generator`: token ids in, a stream of token ids out."""

    def __init__(
        self,
        generator: Generator,
        *,
        tenants: Tenants,
        load: LoadClient,
        messages: LargeMessages,
        version: str,
        is_serving: Callable[[], bool],
    ) -> None:
        self._generator = generator
        self._pooler = PoolingService(generator)
        self._tenants = tenants
        self._load = load
        self._messages = messages
        self._version = version
        self._is_serving = is_serving
        self._archives = TokenizerArchives()
        self._started = time.monotonic()
        self._last_received_at = 0.0

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        self._last_received_at = time.time()
        origin = self._origin(context)

        async def decode() -> ApiRequest:
            max_model_len = self._generator.models.of("", GENERATING).window
            return await self._messages.convert(
                request, partial(request_codec.generate_api_request, max_model_len=max_model_len)
            )

        api_request = await self._generator.read(origin, decode)
        answer = Answer(is_streamed=request.stream, num_sequences=api_request.sampling.get("n", 1))
        try:
            async with aclosing(self._generator.generate(api_request, origin)) as updates:
                async for update in updates:
                    for response in answer.responses(update):
                        yield response
        except Cancelled:  # by Abort; a client that disconnects cancels this task instead
            for response in answer.aborted():
                yield response

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Ends requests of the caller's tenant; ids that are not live are ignored."""
        caller = self._caller(context)
        for request_id in request.request_ids:
            self._generator.abort(request_id, tenant=caller.tenant)
        return pb.AbortResponse()

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> pb.HealthCheckResponse:
        healthy = self._is_serving()
        message = "serving" if healthy else "no model is served, or the router is draining"
        return pb.HealthCheckResponse(healthy=healthy, message=message)

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        return info_codec.model_info(self._generator.models.of("", GENERATING))

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        return info_codec.server_info(
            self._generator.models.of("", GENERATING),
            num_live=self._generator.live.num_live,
            uptime_s=time.monotonic() - self._started,
            last_received_at=self._last_received_at,
        )

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        load = await self._load.fetch()
        now = datetime.datetime.now(datetime.UTC)
        return info_codec.loads(load, version=self._version, now=now)

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        async with self._generator.place(self._caller(context), "", GENERATING) as place:
            archive = await self._archives.of(place.model.tokenizer.files)
            for data, sha256 in archive.chunks():
                yield common_pb2.GetTokenizerChunk(data=data, sha256=sha256)

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        self._last_received_at = time.time()
        inputs = [PromptTokens(list(request.tokenized.input_ids), "tokenized.input_ids")]
        call = EmbedCall(request_id=request.request_id, inputs=inputs)
        origin = self._origin(context, operation=EMBEDDINGS, method="Embed")
        answer = await self._pooler.embed(call, origin)
        (vector,) = answer.vectors
        return pb.EmbedResponse(
            embedding=vector.tolist(),
            prompt_tokens=answer.usage.prompt_tokens,
            embedding_dim=len(vector),
        )

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: Context
    ) -> common_pb2.FlushCacheResponse:
        raise Unimplemented("the prefix cache is not flushed on request; send a new cache_salt")

    async def StartProfile(
        self, request: common_pb2.StartProfileRequest, context: Context
    ) -> common_pb2.ProfileResponse:
        raise Unimplemented("profiling is not served over this protocol; use traces")

    async def StopProfile(
        self, request: common_pb2.StopProfileRequest, context: Context
    ) -> common_pb2.ProfileResponse:
        raise Unimplemented("profiling is not served over this protocol; use traces")

    async def SubscribeKvEvents(
        self, request: common_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[common_pb2.KvEventBatch]:
        raise Unimplemented("events of the KV cache are not published")
        yield

    def _caller(self, context: Context) -> Caller:
        address = grpc_address(context.peer())
        return self._tenants.identify(context.invocation_metadata(), address=address)

    def _origin(
        self, context: Context, *, operation: str = COMPLETION, method: str = "Generate"
    ) -> CallContext:
        caller = self._caller(context)
        return CallContext(
            operation=operation,
            transport=rpc_transport(f"{SERVICE_NAME}/{method}"),
            parent=tracing.extract_metadata(context.invocation_metadata()),
            time_remaining=context.time_remaining,
            tenant=caller.tenant,
            key=caller.key,
            payer=caller.payer,
        )

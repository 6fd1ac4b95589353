"""vllm.grpc.engine's service, as smg-grpc-proto ships it: decode, call, encode.

A third door to the generations that inference.v1 and the HTTP API serve. Embeddings, profiling and
events of the cache are not served here; gateways do without them.
"""

import asyncio
import datetime
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from router.generation import COMPLETION, Generator, Origin
from router.load_client import LoadClient
from router.tenants import Tenants
from router.tracing import grpc_transport
from router.vllm import info_codec, request_codec
from router.vllm.response_codec import Answer
from rpc import telemetry
from rpc.errors import Cancelled, Unimplemented
from rpc.handlers import Context

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["VllmEngine"].full_name
OPERATIONS = {f"/{SERVICE_NAME}/Generate": COMPLETION}


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """Token ids in, a stream of token ids out."""

    def __init__(
        self,
        generator: Generator,
        *,
        tenants: Tenants,
        load: LoadClient,
        version: str,
        is_serving: Callable[[], bool],
    ) -> None:
        self._generator = generator
        self._tenants = tenants
        self._load = load
        self._version = version
        self._is_serving = is_serving
        self._started = time.monotonic()
        self._last_received_at = 0.0

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        self._last_received_at = time.time()
        origin = self._origin(context)
        with self._generator.reading(origin):
            max_model_len = self._generator.model.window
            asked = request_codec.asked_to_generate(request, max_model_len=max_model_len)
        answer = Answer(is_streamed=request.stream, num_sequences=asked.sampling.get("n", 1))
        try:
            async with aclosing(self._generator.generate(asked, origin)) as updates:
                async for served in updates:
                    for response in answer.responses(served):
                        yield response
        except Cancelled:  # by Abort; a client that leaves cancels this task instead
            for response in answer.aborted():
                yield response

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Ends requests of the caller's tenant; ids that are not live count for nothing."""
        tenant, _ = self._tenants.identify(context.invocation_metadata())
        for request_id in request.request_ids:
            self._generator.abort(request_id, tenant=tenant)
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
        return info_codec.model_info(self._generator.model)

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        return info_codec.server_info(
            self._generator.model,
            num_live=self._generator.admission.num_live,
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
        files = self._generator.model.tokenizer.files
        archive = await asyncio.to_thread(info_codec.tokenizer_archive, files)
        for chunk in info_codec.tokenizer_chunks(archive):
            yield chunk

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        raise Unimplemented("embeddings are not served; the models here generate")

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

    def _origin(self, context: Context) -> Origin:
        metadata = context.invocation_metadata()
        tenant, key = self._tenants.identify(metadata)
        return Origin(
            operation=COMPLETION,
            transport=grpc_transport(f"{SERVICE_NAME}/Generate"),
            parent=telemetry.extract_metadata(metadata),
            time_remaining=context.time_remaining,
            tenant=tenant,
            key=key,
        )

"""inference.v1's service: decode, call, encode."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc
from router import codec, validation
from router.admission import Admission, Asked, now_ns, timeout_ns
from router.codec import Served
from router.model import ServedModel
from router.scheduler_client import SchedulerConnection
from router.tracing import RequestSpan
from rpc import telemetry
from rpc.handlers import Context

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name
MAX_NAME_CHARS = 100


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Text in, a stream of text out."""

    def __init__(self, admission: Admission, scheduler: SchedulerConnection) -> None:
        self._admission = admission
        self._scheduler = scheduler

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        asked = codec.asked_to_generate(request)
        updates = self._generate(asked, context, operation="text_completion", method="Generate")
        async with aclosing(updates):
            async for served in updates:
                yield codec.response(pb.GenerateResponse, served)

    async def Chat(
        self, request: pb.ChatRequest, context: Context
    ) -> AsyncIterator[pb.ChatResponse]:
        asked = codec.asked_to_chat(request)
        updates = self._generate(asked, context, operation="chat", method="Chat")
        async with aclosing(updates):
            async for served in updates:
                yield codec.response(pb.ChatResponse, served)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        model = self._scheduler.model
        validation.check_model(request.model, model)
        max_bytes = self._admission.max_text_bytes(model)
        validation.check_text(request.text, field="text", max_bytes=max_bytes)
        token_ids = await model.tokenizer.encode(
            request.text, add_special_tokens=codec.add_special_tokens(request)
        )
        return pb.TokenizeResponse(token_ids=token_ids)

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeResponse:
        model = self._scheduler.model
        validation.check_model(request.model, model)
        validation.check_token_ids(request.token_ids, field="token_ids", model=model)
        text = await model.tokenizer.decode(
            list(request.token_ids), skip_special_tokens=codec.skip_special_tokens(request)
        )
        return pb.DetokenizeResponse(text=text)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        return codec.model(self._scheduler.model)

    async def _generate(
        self, asked: Asked, context: Context, *, operation: str, method: str
    ) -> AsyncGenerator[Served]:
        """Yields what the client gets next; when this is closed, nothing of the request is left."""
        arrived_ns = now_ns()
        model = self._scheduler.model
        span = RequestSpan(
            operation,
            model=asked.model[:MAX_NAME_CHARS] or model.name,
            method=f"{SERVICE_NAME}/{method}",
            parent=telemetry.extract_metadata(context.invocation_metadata()),
        )
        with (
            span.ending(context.time_remaining),
            self._admission.reserve(asked.request_id) as request_id,
        ):
            token_ids = await self._tokenize(asked, model, context, span)
            request = self._admission.submit(
                asked,
                model,
                token_ids,
                request_id=request_id,
                arrived_ns=arrived_ns,
                time_remaining=context.time_remaining,
                trace_context=telemetry.inject(span.context),
            )
            span.set_request(request)
            try:
                async for update in request.updates():
                    span.add_update(update)
                    yield Served(request, update)
            finally:
                request.close()

    async def _tokenize(
        self, asked: Asked, model: ServedModel, context: Context, span: RequestSpan
    ) -> list[int]:
        timeout_ns(context.time_remaining)  # a request that is late already costs nothing
        self._admission.check(asked, model)
        with span.tokenize() as tokenized:
            tokenized += await self._admission.tokenize(asked, model)
        return tokenized

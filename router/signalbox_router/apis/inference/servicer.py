"""The service of inference.v1: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from signalbox_contract.errors import InvalidArgument
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc
from signalbox_router.apis.inference import (
    generate_codec,
    info_codec,
    pooling_codec,
    tokenize_codec,
)
from signalbox_router.generation.call_context import (
    CHAT,
    CLASSIFY,
    COMPLETION,
    EMBEDDINGS,
    SCORE,
    CallContext,
)
from signalbox_router.generation.generator import Generator
from signalbox_router.generation.pooler import PoolingService
from signalbox_router.insight.request_span import rpc_transport
from signalbox_router.limits.payers import Payer, grpc_address
from signalbox_router.limits.tenants import Caller, Tenants
from signalbox_router.params import params_validation
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.schedulers.launcher.launched_models import LaunchedModel, NotLoaded
from signalbox_router.schedulers.load_client import ClusterLoad, LoadClient
from signalbox_router.schedulers.served_models import GENERATING
from signalbox_rpc.interceptors.call_handlers import Context
from signalbox_rpc.limits.large_messages import LargeMessages
from signalbox_rpc.telemetry import tracing

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name
OPERATIONS = {
    f"/{SERVICE_NAME}/Generate": COMPLETION,
    f"/{SERVICE_NAME}/Chat": CHAT,
    f"/{SERVICE_NAME}/Embed": EMBEDDINGS,
    f"/{SERVICE_NAME}/Score": SCORE,
    f"/{SERVICE_NAME}/Classify": CLASSIFY,
}
"""GenAI operation of each method that a model answers."""


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Serves inference.v1 by a `Generator`."""

    def __init__(
        self, generator: Generator, *, tenants: Tenants, load: LoadClient, messages: LargeMessages
    ) -> None:
        self._generator = generator
        self._pooler = PoolingService(generator)
        self._tenants = tenants
        self._load = load
        self._messages = messages

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        call_context = self._call_context(context, operation=COMPLETION, method="Generate")
        with self._generator.reading(call_context):
            api_request = await self._messages.convert(request, generate_codec.generate_api_request)
        async with aclosing(self._generator.generate(api_request, call_context)) as updates:
            async for update in updates:
                for response in generate_codec.responses(pb.GenerateResponse, update):
                    yield response

    async def Chat(
        self, request: pb.ChatRequest, context: Context
    ) -> AsyncIterator[pb.ChatResponse]:
        call_context = self._call_context(context, operation=CHAT, method="Chat")
        with self._generator.reading(call_context):
            api_request = await self._messages.convert(request, generate_codec.chat_api_request)
        async with aclosing(self._generator.generate(api_request, call_context)) as updates:
            async for update in updates:
                for response in generate_codec.responses(pb.ChatResponse, update):
                    yield response

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        call_context = self._call_context(context, operation=EMBEDDINGS, method="Embed")
        with self._generator.reading(call_context):
            call = await self._messages.convert(request, pooling_codec.embed_call)
        answer = await self._pooler.embed(call, call_context)
        return await asyncio.to_thread(pooling_codec.embed_response, request, answer)

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        call_context = self._call_context(context, operation=SCORE, method="Score")
        with self._generator.reading(call_context):
            call = await self._messages.convert(request, pooling_codec.score_call)
        answer = await self._pooler.score(call, call_context)
        return pooling_codec.score_response(request, answer)

    async def Classify(self, request: pb.ClassifyRequest, context: Context) -> pb.ClassifyResponse:
        call_context = self._call_context(context, operation=CLASSIFY, method="Classify")
        with self._generator.reading(call_context):
            call = await self._messages.convert(request, pooling_codec.classify_call)
        answer = await self._pooler.classify(call, call_context)
        return await asyncio.to_thread(pooling_codec.classify_response, request, answer)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        caller = self._caller(context)
        async with self._generator.place(caller, request.model) as place:
            model = place.model
            token_ids = await self._token_ids(request, model, caller.payer)
            place.spend(len(token_ids))
            if request.return_texts and len(token_ids) > model.max_model_len:
                allowed = f"unset for more than the model's window of {model.max_model_len} tokens"
                raise InvalidArgument("return_texts", True, allowed)
            return await tokenize_codec.tokens(request, token_ids, model.tokenizer)

    async def _token_ids(
        self, request: pb.TokenizeRequest, model: ServedModel, payer: Payer
    ) -> list[int]:
        max_bytes = self._generator.admission.max_text_bytes
        if request.HasField("chat"):
            conversation = tokenize_codec.conversation(request)
            encode = model.tokenizer.encode_chat(conversation, max_bytes=max_bytes, payer=payer)
            return (await encode).token_ids
        params_validation.check_text(request.text, field="text", max_bytes=max_bytes)
        add_special_tokens = tokenize_codec.add_special_tokens(request)
        return await model.tokenizer.encode(
            request.text, add_special_tokens=add_special_tokens, payer=payer
        )

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeResponse:
        caller = self._caller(context)
        async with self._generator.place(caller, request.model) as place:
            model = place.model
            token_ids = await tokenize_codec.token_ids(request, model)
            place.spend(len(token_ids))
            text = await model.tokenizer.decode(
                token_ids,
                skip_special_tokens=tokenize_codec.skip_special_tokens(request),
                payer=caller.payer,
            )
            return pb.DetokenizeResponse(text=text)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        models, caller = self._generator.models, self._caller(context)
        try:
            model: ServedModel | LaunchedModel = models.of(request.model, GENERATING)
        except NotLoaded as absent:
            model = absent.model
        caller.check_model(*model.names_of(request.model))
        return info_codec.model(model, caller, state=models.state_of(model))

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        models, caller = self._generator.models, self._caller(context)
        described = [
            info_codec.model(one, caller, state=models.state_of(one))
            for one in models.listed()
            if any(caller.may_use(adapter.name) for adapter in one.adapters)
            or caller.may_use(*one.names_of(one.name))
        ]
        return pb.ListModelsResponse(models=described)

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        served = self._generator.models.all()  # raises Unavailable while no model is served
        cluster = await self._load.fetch() if served else ClusterLoad()
        return info_codec.load(cluster, self._generator.live)

    def _caller(self, context: Context) -> Caller:
        address = grpc_address(context.peer())
        return self._tenants.identify(context.invocation_metadata(), address=address)

    def _call_context(self, context: Context, *, operation: str, method: str) -> CallContext:
        caller = self._caller(context)
        return CallContext(
            operation=operation,
            transport=rpc_transport(
                f"{SERVICE_NAME}/{method}", system=getattr(context, "system", "grpc")
            ),
            parent=tracing.extract_metadata(context.invocation_metadata()),
            time_remaining=context.time_remaining,
            tenant=caller.tenant,
            key=caller.key,
            payer=caller.payer,
        )

"""inference.v1's service: decode, call, encode."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc
from router import codec, validation
from router.generation import CHAT, COMPLETION, Generator, Origin
from router.load_client import LoadClient
from router.tenants import Tenants
from router.token_checks import check_token_ids
from router.tracing import grpc_transport
from rpc import telemetry
from rpc.errors import InvalidArgument
from rpc.handlers import Context

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name
OPERATIONS = {f"/{SERVICE_NAME}/Generate": COMPLETION, f"/{SERVICE_NAME}/Chat": CHAT}
"""Of the methods that generate."""


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Text in, a stream of text out."""

    def __init__(self, generator: Generator, *, tenants: Tenants, load: LoadClient) -> None:
        self._generator = generator
        self._tenants = tenants
        self._load = load

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        origin = self._origin(context, operation=COMPLETION, method="Generate")
        with self._generator.reading(origin):
            asked = codec.asked_to_generate(request)
        async with aclosing(self._generator.generate(asked, origin)) as updates:
            async for served in updates:
                for response in codec.responses(pb.GenerateResponse, served):
                    yield response

    async def Chat(
        self, request: pb.ChatRequest, context: Context
    ) -> AsyncIterator[pb.ChatResponse]:
        origin = self._origin(context, operation=CHAT, method="Chat")
        with self._generator.reading(origin):
            asked = codec.asked_to_chat(request)
        async with aclosing(self._generator.generate(asked, origin)) as updates:
            async for served in updates:
                for response in codec.responses(pb.ChatResponse, served):
                    yield response

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        model = self._generator.model
        validation.check_model(request.model, model)
        max_bytes = self._generator.admission.max_text_bytes(model)
        validation.check_text(request.text, field="text", max_bytes=max_bytes)
        token_ids = await model.tokenizer.encode(
            request.text, add_special_tokens=codec.add_special_tokens(request)
        )
        if request.return_texts and len(token_ids) > model.max_model_len:
            allowed = f"unset for more than the model's window of {model.max_model_len} tokens"
            raise InvalidArgument("return_texts", True, allowed)
        return codec.tokens(request, token_ids, model.tokenizer)

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeResponse:
        model = self._generator.model
        validation.check_model(request.model, model)
        check_token_ids(request.token_ids, field="token_ids", model=model)
        text = await model.tokenizer.decode(
            list(request.token_ids), skip_special_tokens=codec.skip_special_tokens(request)
        )
        return pb.DetokenizeResponse(text=text)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        return codec.model(self._generator.model)

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        _ = self._generator.model  # raises Unavailable while nobody serves
        return codec.load(await self._load.fetch(), self._generator.admission)

    def _origin(self, context: Context, *, operation: str, method: str) -> Origin:
        metadata = context.invocation_metadata()
        tenant, key = self._tenants.identify(metadata)
        return Origin(
            operation=operation,
            transport=grpc_transport(f"{SERVICE_NAME}/{method}"),
            parent=telemetry.extract_metadata(metadata),
            time_remaining=context.time_remaining,
            tenant=tenant,
            key=key,
        )

"""Handlers of OpenAI's Responses API. See its API reference."""

from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from signalbox_router.apis.agents import omitted_header
from signalbox_router.apis.openai.bodies.body_reader import BodyReader, Ids, ignored_header
from signalbox_router.apis.openai.callers import Callers, completed
from signalbox_router.apis.openai.route import EVENTS, JSON, OF_TOKENS, OF_WORK, Route
from signalbox_router.apis.openai.streaming import GeneratedResponse, Headers, json_response
from signalbox_router.apis.responses.input_codec import Read, conversation_of
from signalbox_router.apis.responses.request_codec import api_request
from signalbox_router.apis.responses.response import ResponsesAnswer
from signalbox_router.apis.responses.types import InputTokensBody, ResponsesBody
from signalbox_router.generation.call_context import CHAT
from signalbox_router.generation.generator import Generator
from signalbox_router.limits.tenants import Tenants
from signalbox_router.requests.api_request import ApiRequest
from signalbox_router.schedulers.served_models import GENERATING
from signalbox_rpc.http.disconnection import until_disconnected


class ResponsesApi:
    """The endpoints' handlers."""

    def __init__(self, generator: Generator, *, tenants: Tenants, bodies: BodyReader) -> None:
        self._generator = generator
        self._callers = Callers(tenants)
        self._bodies = bodies

    async def responses(self, request: Request) -> Response:
        """Answers a conversation."""
        call_context = self._callers.call_context(request, operation=CHAT)
        with self._generator.reading(call_context):
            body, (answer, headers, asked) = await self._bodies.read(
                request, ResponsesBody, into=lambda body: self._asked(request, body)
            )
        call_context = completed(call_context, request, streams=body.stream)
        return GeneratedResponse(
            self._generator.generate(asked, call_context),
            answer,
            body=body,
            is_streamed=bool(body.stream),
            headers=headers,
        )

    async def input_tokens(self, request: Request) -> Response:
        """Counts the tokens of the prompt that an input becomes."""
        caller = self._callers.identify(request)
        self._generator.models.all()  # raises Unavailable
        body, read = await self._bodies.read(request, InputTokensBody, into=conversation_of)
        with self._generator.place(caller, body.model or "", GENERATING) as place:
            asked = ApiRequest(prompt=read.conversation, drops_turns=body.truncation == "auto")
            encode = self._generator.admission.encode(asked, place.model, caller.payer)
            num_tokens = len((await until_disconnected(request.receive, encode)).token_ids)
            place.spend(num_tokens)
        counted = {"object": "response.input_tokens", "input_tokens": num_tokens}
        return json_response(counted, headers=_headers(request, read))

    ROUTES: ClassVar[tuple[Route, ...]] = (
        Route("/v1/responses", responses, ResponsesBody, OF_WORK, (JSON, EVENTS)),
        Route("/v1/responses/input_tokens", input_tokens, InputTokensBody, OF_TOKENS),
    )

    def _asked(
        self, request: Request, body: ResponsesBody
    ) -> tuple[ResponsesAnswer, Headers, ApiRequest]:
        ids = Ids("resp", request, body.request_id, separator="_")
        model = self._generator.model_of(body.model or "", GENERATING)
        read = conversation_of(body)
        answer = ResponsesAnswer(body, read, response_id=ids.response_id, model=model)
        asked = api_request(body, read, request_id=ids.of(0, 1), model=model)
        return answer, _headers(request, read), asked


def _headers(request: Request, read: Read) -> Headers:
    return {**ignored_header(request), **omitted_header(read.offered.omitted)}

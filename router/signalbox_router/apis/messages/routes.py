"""Handlers of Anthropic's Messages API. See its API reference."""

from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from signalbox_router.apis.agents import omitted_header
from signalbox_router.apis.messages import request_codec
from signalbox_router.apis.messages.conversation_codec import (
    Read,
    checked_conversation_of,
    conversation_of,
)
from signalbox_router.apis.messages.errors import ID_HEADER, MessagesErrors, id_of
from signalbox_router.apis.messages.response import MessageAnswer
from signalbox_router.apis.messages.types import CountTokensBody, MessagesBody
from signalbox_router.apis.openai.bodies.body_reader import BodyReader, Ids, ignored_header
from signalbox_router.apis.openai.callers import Callers, completed
from signalbox_router.apis.openai.route import EVENTS, JSON, OF_TOKENS, OF_WORK, Route
from signalbox_router.apis.openai.streaming import GeneratedResponse, json_response
from signalbox_router.generation.call_context import CHAT
from signalbox_router.generation.generator import Generator
from signalbox_router.limits.tenants import Tenants
from signalbox_router.requests.api_request import ApiRequest
from signalbox_router.schedulers.served_models import GENERATING
from signalbox_rpc.http.disconnection import until_disconnected

ERRORS = MessagesErrors()


class MessagesApi:
    """The endpoints' handlers."""

    def __init__(self, generator: Generator, *, tenants: Tenants, bodies: BodyReader) -> None:
        self._generator = generator
        self._callers = Callers(tenants)
        self._bodies = bodies

    async def messages(self, request: Request) -> Response:
        """Answers a conversation."""
        call_context = self._callers.call_context(request, operation=CHAT)
        with self._generator.reading(call_context):
            body, (answer, headers, asked) = await self._bodies.read(
                request, MessagesBody, into=lambda body: self._asked(request, body)
            )
        call_context = completed(call_context, request, streams=body.stream)
        return GeneratedResponse(
            self._generator.generate(asked, call_context),
            answer,
            body=body,
            is_streamed=bool(body.stream),
            headers=headers,
        )

    async def count_tokens(self, request: Request) -> Response:
        """Counts the tokens of a conversation's prompt."""
        caller = self._callers.identify(request)
        self._generator.models.all()  # raises Unavailable
        body, read = await self._bodies.read(request, CountTokensBody, into=checked_conversation_of)
        with self._generator.place(caller, body.model or "", GENERATING) as place:
            encode = place.model.tokenizer.encode_chat(
                read.conversation,
                max_bytes=self._generator.admission.max_text_bytes,
                payer=caller.payer,
            )
            chat = await until_disconnected(request.receive, encode)
            num_tokens = len(chat.token_ids)
            place.spend(num_tokens)
        counted: dict[str, object] = {"input_tokens": num_tokens}
        if body.context_management is not None:
            counted["context_management"] = {"original_input_tokens": num_tokens}
        headers = {ID_HEADER: id_of(request.scope), **_headers(request, read)}
        return json_response(counted, headers=headers)

    ROUTES: ClassVar[tuple[Route, ...]] = (
        Route("/v1/messages", messages, MessagesBody, OF_WORK, (JSON, EVENTS), ERRORS),
        Route("/v1/messages/count_tokens", count_tokens, CountTokensBody, OF_TOKENS, errors=ERRORS),
    )

    def _asked(
        self, request: Request, body: MessagesBody
    ) -> tuple[MessageAnswer, dict[str, str], ApiRequest]:
        ids = Ids("msg", request, None, separator="_")
        model = self._generator.model_of(body.model or "", GENERATING)
        read = conversation_of(body)
        answer = MessageAnswer(
            body,
            read,
            message_id=ids.response_id,
            model=model.answers_as(body.model or ""),
            betas=request.headers.get("anthropic-beta", ""),
        )
        asked = request_codec.api_request(body, read, request_id=ids.of(0, 1))
        headers = {ID_HEADER: id_of(request.scope), **_headers(request, read)}
        return answer, headers, asked


def _headers(request: Request, read: Read) -> dict[str, str]:
    return {**ignored_header(request), **omitted_header(read.omitted)}

"""Handlers of Anthropic's Messages API. See its API reference."""

from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from signalbox_router.apis.agents import AgentsApi, answer_headers
from signalbox_router.apis.messages.conversation_codec import read_conversation
from signalbox_router.apis.messages.errors import ID_HEADER, MessagesErrors, id_of
from signalbox_router.apis.messages.request_codec import api_request, prefix_ttl_s
from signalbox_router.apis.messages.response import MessageAnswer
from signalbox_router.apis.messages.types import CountTokensBody, MessagesBody
from signalbox_router.apis.openai.bodies.body_reader import Ids
from signalbox_router.apis.openai.generating_api import Generation
from signalbox_router.apis.openai.route import EVENTS, JSON, OF_TOKENS, OF_WORK, Group, Route
from signalbox_router.apis.openai.streaming import json_response
from signalbox_router.schedulers.served_models import GENERATING

ERRORS = MessagesErrors()


class MessagesApi(AgentsApi):
    """The endpoints' handlers."""

    async def messages(self, request: Request) -> Response:
        """Answers a conversation."""
        return await self._generate(request, MessagesBody, self._generation)

    async def count_tokens(self, request: Request) -> Response:
        """Counts the tokens of a conversation's prompt."""
        body, read, num_tokens = await self._count_tokens(
            request, CountTokensBody, read_conversation
        )
        counted: dict[str, object] = {"input_tokens": num_tokens}
        if body.context_management is not None:
            counted["context_management"] = {"original_input_tokens": num_tokens}
        headers = {ID_HEADER: id_of(request.scope), **answer_headers(request, read)}
        return json_response(counted, headers=headers)

    ROUTES: ClassVar[tuple[Route, ...]] = (
        Route("/v1/messages", messages, Group.CHAT, MessagesBody, OF_WORK, (JSON, EVENTS), ERRORS),
        Route(
            "/v1/messages/count_tokens",
            count_tokens,
            Group.TOKENS,
            CountTokensBody,
            OF_TOKENS,
            errors=ERRORS,
        ),
    )

    def _generation(self, request: Request, body: MessagesBody) -> Generation:
        ids = Ids("msg", request, None, separator="_")
        model = self._generator.model_of(body.model or "", GENERATING)
        ttl_s = prefix_ttl_s(body)
        read = read_conversation(body)
        answer = MessageAnswer(
            body,
            read,
            message_id=ids.response_id,
            model=model.answers_as(body.model or ""),
            betas=request.headers.get("anthropic-beta", ""),
        )
        asked = api_request(
            body, read, request_id=ids.of(0, 1), answer_id=ids.response_id, ttl_s=ttl_s
        )
        headers = {ID_HEADER: id_of(request.scope), **answer_headers(request, read)}
        return Generation([asked], answer, headers)

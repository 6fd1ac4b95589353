"""Handlers of OpenAI's Responses API. See its API reference."""

from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from signalbox_router.apis.agents import AgentsApi, answer_headers
from signalbox_router.apis.openai.bodies.body_reader import Ids
from signalbox_router.apis.openai.generating_api import Generation
from signalbox_router.apis.openai.route import EVENTS, JSON, OF_TOKENS, OF_WORK, Group, Route
from signalbox_router.apis.openai.streaming import json_response
from signalbox_router.apis.responses.input_codec import read_input
from signalbox_router.apis.responses.request_codec import api_request
from signalbox_router.apis.responses.response import ResponsesAnswer
from signalbox_router.apis.responses.types import InputTokensBody, ResponsesBody
from signalbox_router.schedulers.served_models import GENERATING


class ResponsesApi(AgentsApi):
    """The endpoints' handlers."""

    async def responses(self, request: Request) -> Response:
        """Answers a conversation."""
        return await self._generate(request, ResponsesBody, self._generation)

    async def input_tokens(self, request: Request) -> Response:
        """Counts the tokens of the prompt that an input becomes."""
        _, read, num_tokens = await self._count_tokens(request, InputTokensBody, read_input)
        counted = {"object": "response.input_tokens", "input_tokens": num_tokens}
        return json_response(counted, headers=answer_headers(request, read))

    ROUTES: ClassVar[tuple[Route, ...]] = (
        Route("/v1/responses", responses, Group.CHAT, ResponsesBody, OF_WORK, (JSON, EVENTS)),
        Route("/v1/responses/input_tokens", input_tokens, Group.TOKENS, InputTokensBody, OF_TOKENS),
    )

    def _generation(self, request: Request, body: ResponsesBody) -> Generation:
        ids = Ids("resp", request, body.request_id, separator="_")
        model = self._generator.model_of(body.model or "", GENERATING)
        read = read_input(body)
        answer = ResponsesAnswer(body, read, response_id=ids.response_id, model=model)
        asked = api_request(
            body, read, request_id=ids.of(0, 1), answer_id=ids.response_id, model=model
        )
        return Generation([asked], answer, answer_headers(request, read))

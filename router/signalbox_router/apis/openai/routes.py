"""Handlers of the endpoints. See OpenAI's API reference, and vLLM's for /tokenize and others."""

import hashlib
import time
from functools import partial
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from signalbox_router.apis.openai.bodies.body_reader import BodyReader, Ids, ignored_header
from signalbox_router.apis.openai.chat_response import ChatAnswer
from signalbox_router.apis.openai.completion_response import CompletionAnswer
from signalbox_router.apis.openai.generating_api import GeneratingApi, Generation
from signalbox_router.apis.openai.model_cards import Card, model_card, page_of
from signalbox_router.apis.openai.requests import request_codec
from signalbox_router.apis.openai.requests.chat_types import ChatBody, DetokenizeBody, TokenizeBody
from signalbox_router.apis.openai.requests.types import CompletionBody
from signalbox_router.apis.openai.response_fields import ResponseHead
from signalbox_router.apis.openai.route import (
    EVENTS,
    JSON,
    OF_A_NAME,
    OF_TOKENS,
    OF_WORK,
    Group,
    Route,
)
from signalbox_router.apis.openai.streaming import json_content, json_response
from signalbox_router.apis.openai.tokenize_response import (
    asked_conversation,
    detokenized,
    tokenized,
)
from signalbox_router.generation.call_context import COMPLETION
from signalbox_router.generation.generator import Generator
from signalbox_router.limits.tenants import Tenants
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.schedulers.launcher.launched_models import LaunchedModel, NotLoaded
from signalbox_router.schedulers.served_models import ANY, GENERATING
from signalbox_rpc.http.disconnection import until_disconnected


class Api(GeneratingApi):
    """The endpoints' handlers. Their exceptions become errors in OpenAI's shape."""

    def __init__(
        self, generator: Generator, *, tenants: Tenants, version: str, bodies: BodyReader
    ) -> None:
        super().__init__(generator, tenants=tenants, bodies=bodies)
        self._version = version
        self._started = int(time.time())

    async def health(self, request: Request) -> Response:
        """Says whether requests are taken."""
        self._generator.models.all()  # raises Unavailable
        return Response()

    async def about(self, request: Request) -> Response:
        """Says what this server is, and where the rest is."""
        caller, models = self._callers.identify(request), self._generator.models
        known = models.listed() if models.first else []
        served = [one.name for one in known if caller.may_use(*one.names_of(one.name))]
        return json_response(
            {
                "name": "Signalbox",
                "version": self._version,
                "models": served,
                "api": "/v1",
                "docs": "/docs",
                "health": "/health",
            },
            headers={"vary": "accept"},  # a browser may get a page here
        )

    async def load(self, request: Request) -> Response:
        """Says how many requests run or wait, in vLLM's shape."""
        return json_response({"server_load": self._generator.live.num_live})

    async def tokenizer_info(self, request: Request) -> Response:
        """Returns the configuration of a model's tokenizer and its chat template, as vLLM does."""
        model = self._usable(request, request.query_params.get("model", ""), GENERATING)
        return json_response(model.tokenizer.settings.info())

    async def version(self, request: Request) -> Response:
        """Returns the server's version."""
        return json_response({"version": self._version})

    async def models(self, request: Request) -> Response:
        """Lists what the caller may use: models under each of their names, and adapters."""
        caller = self._callers.identify(request)
        cards = [
            self._card(name, model)
            for model in self._generator.models.listed()
            for name in (*model.names, *(adapter.name for adapter in model.adapters))
            if caller.may_use(*model.names_of(name))
        ]
        return json_response(page_of(cards, request.query_params))

    async def model(self, request: Request) -> Response:
        """Returns a served model by one of its names, or an adapter."""
        name = request.path_params["name"]
        if not self._generator.models.knows(name):
            name = name.rstrip("/")
        try:
            model: ServedModel | LaunchedModel = self._usable(request, name)
        except NotLoaded as absent:
            model = absent.model
            self._callers.identify(request).check_model(*model.names_of(name))
        return json_response(self._card(name, model))

    def _card(self, name: str, model: ServedModel | LaunchedModel) -> Card:
        state = self._generator.models.state_of(model)
        return model_card(name, model, created=self._started, state=state)

    def _usable(self, request: Request, name: str, tasks: frozenset[str] = ANY) -> ServedModel:
        """Returns the model of a name. Raises PermissionDenied if the caller may not use it."""
        model = self._generator.models.of(name, tasks)
        self._callers.identify(request).check_model(*model.names_of(name))
        return model

    async def completions(self, request: Request) -> Response:
        """Continues prompts."""
        return await self._generate(
            request, CompletionBody, self._completions, operation=COMPLETION
        )

    async def chat_completions(self, request: Request) -> Response:
        """Answers a conversation."""
        return await self._generate(request, ChatBody, self._chat)

    async def tokenize(self, request: Request) -> Response:
        """Turns a prompt or a conversation into token ids."""
        caller = self._callers.identify(request)
        self._generator.models.all()  # raises Unavailable
        body, conversation = await self._bodies.read(request, TokenizeBody, into=asked_conversation)
        async with self._generator.place(
            caller, body.model or "", until_left=partial(until_disconnected, request.receive)
        ) as place:
            max_bytes = self._generator.admission.max_text_bytes
            answer = tokenized(body, conversation, place, payer=caller.payer, max_bytes=max_bytes)
            content = await until_disconnected(request.receive, answer)
        return json_content(content, headers=ignored_header(request))

    async def detokenize(self, request: Request) -> Response:
        """Turns token ids into text."""
        caller = self._callers.identify(request)
        self._generator.models.all()  # raises Unavailable
        body, _ = await self._bodies.read(request, DetokenizeBody, into=lambda _: None)
        async with self._generator.place(
            caller, body.model or "", until_left=partial(until_disconnected, request.receive)
        ) as place:
            answer = detokenized(body, place, payer=caller.payer)
            content = await until_disconnected(request.receive, answer)
        return json_content(content, headers=ignored_header(request))

    ROUTES: ClassVar[tuple[Route, ...]] = (
        Route("/", about, Group.OPERATION),
        Route("/health", health, Group.OPERATION, answers=()),
        Route("/version", version, Group.OPERATION),
        Route("/load", load, Group.OPERATION),
        Route("/tokenizer_info", tokenizer_info, Group.TOKENS),
        Route("/v1/models", models, Group.MODELS),
        Route("/v1/models/{name:path}", model, Group.MODELS, failures=OF_A_NAME),
        Route(
            "/v1/completions",
            completions,
            Group.COMPLETIONS,
            CompletionBody,
            OF_WORK,
            (JSON, EVENTS),
        ),
        Route(
            "/v1/chat/completions", chat_completions, Group.CHAT, ChatBody, OF_WORK, (JSON, EVENTS)
        ),
        Route("/tokenize", tokenize, Group.TOKENS, TokenizeBody, OF_TOKENS),
        Route("/detokenize", detokenize, Group.TOKENS, DetokenizeBody, OF_TOKENS),
    )

    def _completions(self, request: Request, body: CompletionBody) -> Generation:
        ids = Ids("cmpl", request, body.request_id)
        prompts = request_codec.prompts_of(body)
        names = [ids.of(i, len(prompts)) for i in range(len(prompts))]
        model = self._generator.model_of(body.model or "", GENERATING)
        many = request_codec.completion_api_request(body, prompts, names, model=model)
        answer = CompletionAnswer(body, self._head(ids, body.model, model))
        return Generation(many, answer, ids.headers)

    def _chat(self, request: Request, body: ChatBody) -> Generation:
        ids = Ids("chatcmpl", request, body.request_id)
        model = self._generator.model_of(body.model or "", GENERATING)
        answer = ChatAnswer(body, self._head(ids, body.model, model))
        asked = request_codec.chat_api_request(body, request_id=ids.of(0, 1), model=model)
        return Generation([asked], answer, ids.headers)

    def _head(self, ids: Ids, asked: str | None, model: ServedModel) -> ResponseHead:
        return ResponseHead(
            id=ids.response_id,
            # An adapter that is not loaded is so before the first byte of the answer.
            model=model.answers_as(asked or ""),
            tokenizer=model.tokenizer,
            system_fingerprint=fingerprint(self._version, model),
        )


def fingerprint(version: str, model: ServedModel) -> str:
    """Returns OpenAI's system_fingerprint: it changes with the server's version and the model."""
    made_of = f"{version} {model.name} {model.architecture} {model.dtype} {model.vocab_size}"
    return f"signalbox-{version}-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"

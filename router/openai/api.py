"""What each endpoint does. See OpenAI's API reference, and vLLM's for /tokenize and its like."""

import hashlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from router import validation
from router.admission import Asked
from router.generation import CHAT, COMPLETION, Generator, Origin
from router.model import ServedModel
from router.openai import conversation_codec, request_codec
from router.openai.answers import Head
from router.openai.bodies import BodyReader, Ids, ignored_header
from router.openai.chat import ChatAnswer
from router.openai.chat_types import ChatBody, DetokenizeBody, TokenizeBody
from router.openai.completions import CompletionAnswer
from router.openai.errors import BadRequest, http_status
from router.openai.merge import Part, merged
from router.openai.responses import GeneratedResponse, json_response
from router.openai.types import CompletionBody, GenerationBody
from router.tenants import Tenants
from router.token_checks import check_token_ids
from router.tracing import Transport, http_transport
from rpc import telemetry
from rpc.errors import Unavailable

OWNER = "signalbox"


class Api:
    """The endpoints' handlers. What they raise becomes an error in OpenAI's shape."""

    def __init__(
        self, generator: Generator, *, tenants: Tenants, version: str, bodies: BodyReader
    ) -> None:
        self._generator = generator
        self._tenants = tenants
        self._version = version
        self._bodies = bodies
        self._started = int(time.time())

    async def health(self, request: Request) -> Response:
        """Says whether requests are taken."""
        self._generator.model  # noqa: B018 - raises Unavailable
        return Response()

    async def about(self, request: Request) -> Response:
        """Says what this server is, and where the rest is."""
        try:
            model = self._generator.model.name
        except Unavailable:
            model = None
        return json_response(
            {
                "name": "Signalbox",
                "version": self._version,
                "model": model,
                "api": "/v1",
                "docs": "/docs",
                "health": "/health",
            }
        )

    async def load(self, request: Request) -> Response:
        """Says how many requests run or wait, in vLLM's shape."""
        return json_response({"server_load": self._generator.admission.num_live})

    async def tokenizer_info(self, request: Request) -> Response:
        """Returns the tokenizer's configuration and chat template, as vLLM does."""
        return json_response(self._generator.model.tokenizer.info())

    async def version(self, request: Request) -> Response:
        """Returns the server's version."""
        return json_response({"version": self._version})

    async def models(self, request: Request) -> Response:
        """Lists the served model under each of its names."""
        cards = [self._model_card(name) for name in self._generator.model.names]
        return json_response({"object": "list", "data": cards})

    async def model(self, request: Request) -> Response:
        """Returns the served model by one of its names."""
        name = request.path_params["name"]
        validation.check_model(name, self._generator.model)
        return json_response(self._model_card(name))

    async def completions(self, request: Request) -> Response:
        """Continues prompts."""
        origin = self._origin(request, operation=COMPLETION)
        with self._generator.reading(origin):
            body = await self._bodies.read(request, CompletionBody)
            ids = Ids("cmpl", request, body.request_id)
            prompts = request_codec.prompts_of(body)
            max_model_len = self._generator.model.window
            many = [
                request_codec.asked_to_complete(
                    body, prompt, request_id=ids.of(i, len(prompts)), max_model_len=max_model_len
                )
                for i, prompt in enumerate(prompts)
            ]
        answer = CompletionAnswer(body, self._head(ids))
        parts = self._generate(many, _streamed(origin, request, body))
        return _response(body, parts, answer, ids)

    async def chat_completions(self, request: Request) -> Response:
        """Answers a conversation."""
        origin = self._origin(request, operation=CHAT)
        with self._generator.reading(origin):
            body = await self._bodies.read(request, ChatBody)
            ids = Ids("chatcmpl", request, body.request_id)
            asked = request_codec.asked_to_chat(
                body, request_id=ids.of(0, 1), max_model_len=self._generator.model.window
            )
        answer = ChatAnswer(body, self._head(ids))
        parts = self._generate([asked], _streamed(origin, request, body))
        return _response(body, parts, answer, ids)

    async def tokenize(self, request: Request) -> Response:
        """Turns a prompt or a conversation into token ids."""
        model = self._generator.model
        body = await self._bodies.read(request, TokenizeBody)
        validation.check_model(body.model or "", model)
        token_ids = await self._token_ids(body)
        count = len(token_ids)
        answer = {"count": count, "max_model_len": model.window, "tokens": token_ids}
        if body.return_token_strs:
            answer["token_strs"] = [model.tokenizer.vocabulary_entry(one) for one in token_ids]
        return json_response(answer, headers=ignored_header(request))

    async def detokenize(self, request: Request) -> Response:
        """Turns token ids into text."""
        model = self._generator.model
        body = await self._bodies.read(request, DetokenizeBody)
        validation.check_model(body.model or "", model)
        if min(body.tokens, default=0) < 0:
            raise BadRequest("tokens: token ids are at least 0", "tokens")
        check_token_ids(body.tokens, field="tokens", model=model)
        text = await model.tokenizer.decode(body.tokens, skip_special_tokens=False)
        return json_response({"prompt": text}, headers=ignored_header(request))

    async def _token_ids(self, body: TokenizeBody) -> list[int]:
        tokenizer = self._generator.model.tokenizer
        max_bytes = self._generator.admission.max_text_bytes(self._generator.model)
        if (body.prompt is None) is (body.messages is None):
            raise BadRequest("prompt: exactly one of prompt and messages", "prompt")
        if body.prompt is None:
            conversation = conversation_codec.conversation_of(body)
            return await tokenizer.encode_chat(conversation, max_bytes=max_bytes)
        validation.check_text(body.prompt, field="prompt", max_bytes=max_bytes)
        adds = body.add_special_tokens is not False
        return await tokenizer.encode(body.prompt, add_special_tokens=adds)

    def _generate(self, many: Sequence[Asked], origin: Origin) -> AsyncGenerator[Part]:
        return merged([self._generator.generate(asked, origin) for asked in many])

    def _head(self, ids: Ids) -> Head:
        model = self._generator.model
        return Head(
            id=ids.response_id,
            model=model.name,
            tokenizer=model.tokenizer,
            system_fingerprint=fingerprint(self._version, model),
        )

    def _origin(self, request: Request, *, operation: str) -> Origin:
        """Returns what headers say."""
        headers = request.headers
        tenant, key = self._tenants.identify(headers.items())
        return Origin(
            operation=operation,
            transport=_transport(request, is_streamed=False),
            parent=telemetry.extract(headers.get("traceparent", ""), headers.get("tracestate", "")),
            time_remaining=lambda: None,
            tenant=tenant,
            key=key,
        )

    def _model_card(self, name: str) -> dict[str, object]:
        model = self._generator.model
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": OWNER,
            "root": model.name,
            "parent": None,
            "max_model_len": model.window,
        }


def fingerprint(version: str, model: ServedModel) -> str:
    """Returns OpenAI's system_fingerprint: it changes with the server's version and the model."""
    made_of = f"{version} {model.name} {model.architecture} {model.dtype} {model.vocab_size}"
    return f"signalbox-{version}-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"


def _streamed(origin: Origin, request: Request, body: GenerationBody) -> Origin:
    """Returns an origin with what only the body says."""
    return (
        replace(origin, transport=_transport(request, is_streamed=True)) if body.stream else origin
    )


def _transport(request: Request, *, is_streamed: bool) -> Transport:
    return http_transport(
        method=request.method,
        route=request.url.path,
        is_streamed=is_streamed,
        status_of=http_status,
    )


def _response(
    body: GenerationBody,
    parts: AsyncGenerator[Part],
    answer: CompletionAnswer | ChatAnswer,
    ids: Ids,
) -> Response:
    if body.stream:
        return GeneratedResponse(parts, body=body, events=answer.events, headers=ids.headers)
    return GeneratedResponse(parts, body=body, whole=answer.whole, headers=ids.headers)

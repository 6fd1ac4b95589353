"""Handlers of the endpoints for vectors and scores: OpenAI's, vLLM's and Cohere's."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from router.call_context import CLASSIFY, EMBEDDINGS, SCORE, CallContext
from router.generator import Generator
from router.keys.tenants import Tenants
from router.openai import pooling_response
from router.openai.bodies.body_reader import BodyReader, Ids
from router.openai.callers import Callers
from router.openai.requests import pooling_codec
from router.openai.requests.pooling_types import (
    ClassifyBody,
    CohereEmbedBody,
    EmbeddingBody,
    PoolingEndpointBody,
    RerankBody,
    ScoreBody,
)
from router.openai.requests.types import Body
from router.openai.streaming import json_content, until_disconnected
from router.pooler import Pooler
from router.pooling.calls import EmbedCall

B = TypeVar("B", bound=Body)
C = TypeVar("C")


class PoolingApi:
    """The endpoints' handlers. Their exceptions become errors in OpenAI's shape."""

    def __init__(self, generator: Generator, *, tenants: Tenants, bodies: BodyReader) -> None:
        self._generator = generator
        self._pooler = Pooler(generator)
        self._callers = Callers(tenants)
        self._bodies = bodies

    async def embeddings(self, request: Request) -> Response:
        """Returns a vector for each input."""
        context = self._callers.call_context(request, operation=EMBEDDINGS)
        body, ids, call = await self._read(
            request, context, EmbeddingBody, "embd", pooling_codec.embed_call
        )

        async def work() -> bytes:
            answer = await self._pooler.embed(call, context)
            return await pooling_response.embeddings(
                self._head(ids, body.model), answer, encoding_format=body.encoding_format or "float"
            )

        return await _answered(request, ids, work())

    async def pooling(self, request: Request) -> Response:
        """Returns what the model makes of each input: an embedding, or classes."""
        context = self._callers.call_context(request, operation=EMBEDDINGS)

        def call_of(body: PoolingEndpointBody, request_id: str) -> Any:
            pooling = self._generator.model.pooling
            task = body.task or (pooling.task if pooling is not None else "embed")
            codec = pooling_codec
            return (codec.embed_call if task == "embed" else codec.classify_call)(body, request_id)

        body, ids, call = await self._read(request, context, PoolingEndpointBody, "pool", call_of)

        async def work() -> bytes:
            is_embedding = isinstance(call, EmbedCall)
            pool: Any = self._pooler.embed if is_embedding else self._pooler.classify
            return await pooling_response.embeddings(
                self._head(ids, body.model),
                await pool(call, context),
                encoding_format=body.encoding_format or "float",
                name="data",
            )

        return await _answered(request, ids, work())

    async def classify(self, request: Request) -> Response:
        """Returns the probability of each class for each input."""
        context = self._callers.call_context(request, operation=CLASSIFY)
        body, ids, call = await self._read(
            request, context, ClassifyBody, "classify", pooling_codec.classify_call
        )

        async def work() -> bytes:
            answer = await self._pooler.classify(call, context)
            return await pooling_response.classes(self._head(ids, body.model), answer)

        return await _answered(request, ids, work())

    async def score(self, request: Request) -> Response:
        """Scores how well texts answer others."""
        context = self._callers.call_context(request, operation=SCORE)
        body, ids, call = await self._read(
            request, context, ScoreBody, "score", pooling_codec.score_call
        )

        async def work() -> bytes:
            answer = await self._pooler.score(call, context)
            return pooling_response.scores(self._head(ids, body.model), answer)

        return await _answered(request, ids, work())

    async def rerank(self, request: Request) -> Response:
        """Orders documents by how well they answer a query."""
        context = self._callers.call_context(request, operation=SCORE)
        body, ids, call = await self._read(
            request, context, RerankBody, "rerank", pooling_codec.rerank_call
        )

        async def work() -> bytes:
            answer = await self._pooler.score(call, context)
            name = self._model_name(body.model)
            version = "2" if request.url.path.startswith("/v2/") else "1"
            return pooling_response.ranking(ids.response_id, name, body, answer, version=version)

        return await _answered(request, ids, work())

    async def cohere_embed(self, request: Request) -> Response:
        """Returns a vector for each text, in Cohere's shape."""
        context = self._callers.call_context(request, operation=EMBEDDINGS)

        def call_of(body: CohereEmbedBody, request_id: str) -> EmbedCall:
            return pooling_codec.cohere_call(body, request_id, self._generator.model)

        body, ids, call = await self._read(request, context, CohereEmbedBody, "embd", call_of)

        async def work() -> bytes:
            answer = await self._pooler.embed(call, context)
            return await pooling_response.cohere_embeddings(ids.response_id, body, answer)

        return await _answered(request, ids, work())

    async def _read(
        self,
        request: Request,
        call_context: CallContext,
        kind: type[B],
        prefix: str,
        call_of: Callable[[B, str], C],
    ) -> tuple[B, Ids, C]:
        """Returns the body, the answer's ids, and the call that the body asks for."""

        def decode(body: B) -> tuple[Ids, C]:
            ids = Ids(prefix, request, getattr(body, "request_id", None))
            return ids, call_of(body, ids.response_id)

        with self._generator.reading(call_context):
            body, (ids, call) = await self._bodies.read(request, kind, into=decode)
        return body, ids, call

    def _head(self, ids: Ids, asked: str | None) -> dict[str, Any]:
        return pooling_response.head(ids.response_id, self._model_name(asked))

    def _model_name(self, asked: str | None) -> str:
        model = self._generator.model
        return model.name if not asked or asked in model.names else asked


async def _answered(request: Request, ids: Ids, work: Coroutine[Any, Any, bytes]) -> Response:
    """Returns the response; the work ends when the client leaves."""
    content = await until_disconnected(request.receive, work)
    return json_content(content, headers=ids.headers)

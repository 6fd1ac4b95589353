"""Handlers of the endpoints for vectors and scores: OpenAI's, vLLM's and Cohere's."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from signalbox_router.apis.openai import pooling_response
from signalbox_router.apis.openai.bodies.body_reader import BodyReader, Ids
from signalbox_router.apis.openai.callers import Callers
from signalbox_router.apis.openai.requests import pooling_codec
from signalbox_router.apis.openai.requests.pooling_types import (
    ClassifyBody,
    CohereEmbedBody,
    EmbeddingBody,
    PoolingBody,
    PoolingEndpointBody,
    RerankBody,
    ScoreBody,
)
from signalbox_router.apis.openai.route import OF_WORK, Group, Route
from signalbox_router.apis.openai.streaming import json_content
from signalbox_router.generation.call_context import CLASSIFY, EMBEDDINGS, SCORE, CallContext
from signalbox_router.generation.generator import Generator
from signalbox_router.generation.pooler import PoolingService
from signalbox_router.generation.pooling.calls import EmbedCall
from signalbox_router.limits.tenants import Tenants
from signalbox_router.schedulers.served_models import CLASSIFYING, EMBEDDING, POOLING
from signalbox_rpc.http.disconnection import until_disconnected

B = TypeVar("B", bound=PoolingBody | CohereEmbedBody)
C = TypeVar("C")


class PoolingApi:
    """The endpoints' handlers. Their exceptions become errors in OpenAI's shape."""

    def __init__(self, generator: Generator, *, tenants: Tenants, bodies: BodyReader) -> None:
        self._generator = generator
        self._pooler = PoolingService(generator)
        self._callers = Callers(tenants)
        self._bodies = bodies

    async def embeddings(self, request: Request) -> Response:
        """Returns a vector for each input."""
        context = self._callers.call_context(request, operation=EMBEDDINGS)
        body, ids, name, call = await self._read(
            request, context, EmbeddingBody, "embd", pooling_codec.embed_call, EMBEDDING
        )

        async def work() -> bytes:
            answer = await self._pooler.embed(call, context)
            return await pooling_response.embeddings(
                pooling_response.head(ids.response_id, name),
                answer,
                form=pooling_codec.vector_form(body),
            )

        return await _answered(request, ids, work())

    async def pooling(self, request: Request) -> Response:
        """Returns what the model makes of each input: an embedding, one of each token, or
        classes."""
        context = self._callers.call_context(request, operation=EMBEDDINGS)

        def call_of(body: PoolingEndpointBody, request_id: str) -> Any:
            pooling = self._generator.models.of(body.model or "", POOLING).pooling
            task = body.task or (pooling.task if pooling is not None else "embed")
            if task == "classify":
                return pooling_codec.classify_call(body, request_id)
            return pooling_codec.embed_call(body, request_id, task=task)

        body, ids, name, call = await self._read(
            request, context, PoolingEndpointBody, "pool", call_of, POOLING
        )

        async def work() -> bytes:
            is_embedding = isinstance(call, EmbedCall)
            pool: Any = self._pooler.embed if is_embedding else self._pooler.classify
            return await pooling_response.embeddings(
                pooling_response.head(ids.response_id, name),
                await pool(call, context),
                form=pooling_codec.vector_form(body),
                name="data",
            )

        return await _answered(request, ids, work())

    async def classify(self, request: Request) -> Response:
        """Returns the probability of each class for each input."""
        context = self._callers.call_context(request, operation=CLASSIFY)
        _, ids, name, call = await self._read(
            request, context, ClassifyBody, "classify", pooling_codec.classify_call, CLASSIFYING
        )

        async def work() -> bytes:
            answer = await self._pooler.classify(call, context)
            return await pooling_response.classes(
                pooling_response.head(ids.response_id, name), answer
            )

        return await _answered(request, ids, work())

    async def score(self, request: Request) -> Response:
        """Scores how well texts answer others."""
        context = self._callers.call_context(request, operation=SCORE)
        _, ids, name, call = await self._read(
            request, context, ScoreBody, "score", pooling_codec.score_call, POOLING
        )

        async def work() -> bytes:
            answer = await self._pooler.score(call, context)
            return pooling_response.scores(pooling_response.head(ids.response_id, name), answer)

        return await _answered(request, ids, work())

    async def rerank(self, request: Request) -> Response:
        """Orders documents by how well they answer a query."""
        context = self._callers.call_context(request, operation=SCORE)
        body, ids, name, call = await self._read(
            request, context, RerankBody, "rerank", pooling_codec.rerank_call, POOLING
        )

        async def work() -> bytes:
            answer = await self._pooler.score(call, context)
            return pooling_response.ranking(
                ids.response_id, name, body, answer, version=_version(request)
            )

        return await _answered(request, ids, work())

    async def cohere_embed(self, request: Request) -> Response:
        """Returns a vector for each text, in Cohere's shape."""
        context = self._callers.call_context(request, operation=EMBEDDINGS)

        def call_of(body: CohereEmbedBody, request_id: str) -> EmbedCall:
            model = self._generator.models.of(body.model or "", EMBEDDING)
            return pooling_codec.cohere_call(body, request_id, model)

        body, ids, _, call = await self._read(
            request, context, CohereEmbedBody, "embd", call_of, EMBEDDING
        )

        async def work() -> bytes:
            answer = await self._pooler.embed(call, context)
            return await pooling_response.cohere_embeddings(
                ids.response_id, body, answer, version=_version(request)
            )

        return await _answered(request, ids, work())

    ROUTES: ClassVar[tuple[Route, ...]] = (
        Route("/v1/embeddings", embeddings, Group.POOLING, EmbeddingBody, OF_WORK),
        Route("/v1/embed", cohere_embed, Group.POOLING, CohereEmbedBody, OF_WORK),
        Route("/v2/embed", cohere_embed, Group.POOLING, CohereEmbedBody, OF_WORK),
        Route("/v1/score", score, Group.POOLING, ScoreBody, OF_WORK),
        Route("/score", score, Group.POOLING, ScoreBody, OF_WORK),
        Route("/v1/rerank", rerank, Group.POOLING, RerankBody, OF_WORK),
        Route("/v2/rerank", rerank, Group.POOLING, RerankBody, OF_WORK),
        Route("/rerank", rerank, Group.POOLING, RerankBody, OF_WORK),
        Route("/classify", classify, Group.POOLING, ClassifyBody, OF_WORK),
        Route("/pooling", pooling, Group.POOLING, PoolingEndpointBody, OF_WORK),
    )

    async def _read(
        self,
        request: Request,
        call_context: CallContext,
        kind: type[B],
        prefix: str,
        call_of: Callable[[B, str], C],
        tasks: frozenset[str],
    ) -> tuple[B, Ids, str, C]:
        """Returns the body, the answer's ids, the model's name in it, and the call that the body
        asks for.

        Args:
            tasks: those of the models that can answer the call if it names none.
        """

        def decode(body: B) -> tuple[Ids, str, C]:
            ids, asked = Ids(prefix, request, getattr(body, "request_id", None)), body.model or ""
            name = self._generator.models.of(asked, tasks).answers_as(asked)
            return ids, name, call_of(body, ids.response_id)

        body, (ids, name, call) = await self._generator.read(
            call_context,
            lambda: self._bodies.read(request, kind, into=decode),
            until_left=partial(until_disconnected, request.receive),
        )
        return body, ids, name, call


def _version(request: Request) -> str:
    """Returns the version of Cohere's API that is asked."""
    return "2" if request.url.path.startswith("/v2/") else "1"


async def _answered(request: Request, ids: Ids, work: Coroutine[Any, Any, bytes]) -> Response:
    """Returns the response; the work ends when the client leaves."""
    content = await until_disconnected(request.receive, work)
    return json_content(content, headers=ids.headers)

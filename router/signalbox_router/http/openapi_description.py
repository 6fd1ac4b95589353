"""Describes each endpoint in /openapi.json, beside its fields: parameters, answers, errors."""

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema
from starlette.types import Receive, Scope, Send

from signalbox_router.apis.openai.requests.adapter_types import LoadAdapterBody, UnloadAdapterBody
from signalbox_router.apis.openai.requests.chat_types import ChatBody, DetokenizeBody, TokenizeBody
from signalbox_router.apis.openai.requests.pooling_types import (
    ClassifyBody,
    CohereEmbedBody,
    EmbeddingBody,
    PoolingEndpointBody,
    RerankBody,
    ScoreBody,
)
from signalbox_router.apis.openai.requests.types import Body, CompletionBody

ABOUT = (
    "A model over HTTP: OpenAI's API, with the extra fields of vLLM's server, and Cohere's for"
    " rerankers and embeddings. A model generates, or makes embeddings, or classifies. Requests"
    " mean what they mean over gRPC. Closing the connection ends a request."
)
LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
BODIES: dict[str, type[Body]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/embeddings": EmbeddingBody,
    "/v1/embed": CohereEmbedBody,
    "/v2/embed": CohereEmbedBody,
    "/v1/score": ScoreBody,
    "/score": ScoreBody,
    "/v1/rerank": RerankBody,
    "/v2/rerank": RerankBody,
    "/rerank": RerankBody,
    "/classify": ClassifyBody,
    "/pooling": PoolingEndpointBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    LOAD_ADAPTER: LoadAdapterBody,
    UNLOAD_ADAPTER: UnloadAdapterBody,
}
STREAMED = {"/v1/completions", "/v1/chat/completions"}
_WITHOUT_MODEL = {"/tokenize", "/detokenize"}
"""Endpoints with a body that need the tokenizer alone."""
NAMED = "/v1/models/{name:path}"

_REASONS = {
    400: "A field is not valid, not served, or not known; `param` names it.",
    401: "No API key, or an unknown one.",
    403: "The API key, the request's `Host` or the web page that sends it is not allowed.",
    404: "The model is not served here.",
    409: "A request with this request_id is running.",
    413: "The body is too large.",
    415: "The body's `Content-Type` is not application/json, or its coding not gzip.",
    429: "No room: `retry-after` says when to try again; `x-should-retry: false`: do not.",
    500: "A bug; the server's log says more.",
    503: "No worker serves the model, or the server is shutting down; see `retry-after`.",
    504: "The request took longer than its deadline.",
}
_KEY = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key, if the server asks for one.",
}
_EVERY = (401, 403, 500, 503)
_OF_BODIES = (400, 404, 413, 415, *_EVERY)
_OF_TOKENS = (429, *_OF_BODIES)
_OF_GENERATION = (409, 504, *_OF_TOKENS)


class ErrorDetail(BaseModel):
    """An error, in OpenAI's format."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    message: str
    """Description of the error for people."""
    type: str
    """Kind of error, such as invalid_request_error."""
    param: str | None
    """Name of the invalid field, as the client wrote it."""
    code: str | None
    """Code for programs, such as context_length_exceeded or model_not_found."""


class ErrorAnswer(BaseModel):
    """Body of every answer that is not a success."""

    error: ErrorDetail


_DESCRIBED: tuple[type[BaseModel], ...] = (*BODIES.values(), ErrorAnswer)


class DescribedApp(FastAPI):
    """Describes bodies that handlers read themselves, so that they are read only once.

    No request is kept: a connection and its last request refer to each other until the garbage
    collector runs, which many connections with a body of two million tokens each need not trigger.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            scope.get("state", {}).pop("body", None)

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            schema = super().openapi()
            _, definitions = models_json_schema(
                [(model, "validation") for model in _DESCRIBED],
                ref_template="#/components/schemas/{model}",
            )
            schema["components"] = {
                "schemas": definitions["$defs"],
                "securitySchemes": {"key": _KEY},
            }
            schema["security"] = [{}, {"key": []}]
        return self.openapi_schema or schema


def description_of(path: str) -> dict[str, Any]:
    """Returns the description of an endpoint, beside its handler's own."""
    success: dict[str, Any] = {"description": "Success."}
    if path != "/health":
        success["content"] = _json({"type": "object"})
    if path in STREAMED:
        success["content"]["text/event-stream"] = {"schema": {"type": "string"}}
        return _with_body(path, success, _OF_GENERATION)
    if path in (LOAD_ADAPTER, UNLOAD_ADAPTER):
        success["content"] = {"text/plain": {"schema": {"type": "string"}}}
        return _with_body(path, success, _OF_TOKENS)
    if path in BODIES:
        errors = _OF_TOKENS if path in _WITHOUT_MODEL else _OF_GENERATION
        return _with_body(path, success, errors)
    if path == NAMED:
        name = {
            "name": "name",
            "in": "path",
            "required": True,
            "description": "The model's name, which may hold slashes.",
            "schema": {"type": "string"},
        }
        return {"parameters": [name], "responses": _responses(success, (404, *_EVERY))}
    return {"responses": _responses(success, _EVERY)}


def _with_body(path: str, success: dict[str, Any], errors: Iterable[int]) -> dict[str, Any]:
    content = _json({"$ref": f"#/components/schemas/{BODIES[path].__name__}"})
    return {
        "requestBody": {"required": True, "content": content},
        "responses": _responses(success, errors),
    }


def _responses(success: dict[str, Any], errors: Iterable[int]) -> dict[str, Any]:
    content = _json({"$ref": f"#/components/schemas/{ErrorAnswer.__name__}"})
    failures = {
        str(status): {"description": _REASONS[status], "content": content}
        for status in sorted(errors)
    }
    return {"200": success, **failures}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}

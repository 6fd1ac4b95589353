"""Describes each endpoint in /openapi.json, beside its fields: parameters, answers, errors."""

import re
from inspect import getdoc
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.types import Receive, Scope, Send

from signalbox_router.apis.openai.route import JSON, Group, Route
from signalbox_router.http.examples import EXAMPLES
from signalbox_router.http.key_middleware import OPEN_PATHS
from signalbox_router.limits.api_keys import PLAIN_HEADER

ABOUT = (
    "A model over HTTP: OpenAI's API, with the extra fields of vLLM's server, Anthropic's Messages"
    " API, and Cohere's for rerankers and embeddings. A model generates, or makes embeddings, or"
    " classifies. Requests mean what they mean over gRPC. Closing the connection ends a request."
)
GROUPS = {
    Group.CHAT: "Answers a conversation: OpenAI's chat completions and Responses, Anthropic's"
    " Messages.",
    Group.COMPLETIONS: "Continues a text.",
    Group.POOLING: "For a model that makes embeddings, ranks documents or classifies.",
    Group.TOKENS: "Texts to token ids and back, and the number of a prompt's tokens.",
    Group.MODELS: "What is served. With `--allow-adapter-loading` LoRA adapters come and go.",
    Group.OPERATION: "Whether requests are taken, and how many there are; `/metrics`, where no keys"
    " are asked for, has more. What the schedulers decide is served by Connect alone, below"
    " `/signalbox.operations.v1.OperationsService`: that needs an operator's API key.",
}
_REASONS = {
    400: "A field is not valid, not served, or not known; `param` names it.",
    401: "No API key, or an unknown one.",
    403: "The API key, the request's `Host` or the web page that sends it is not allowed.",
    404: "The model is not served here, or the response is not kept here.",
    409: "A request with this request_id is running.",
    413: "The body is too large.",
    415: "The body's `Content-Type` is not application/json, or its coding not gzip.",
    429: "No room: `retry-after` says when to try again; `x-should-retry: false`: do not.",
    500: "A bug; the server's log says more.",
    503: "No worker serves the model, or the server is shutting down; see `retry-after`.",
    504: "The request took longer than its deadline.",
}
_PARAMETER = re.compile(r"\{(\w+)")
_PARAMETERS = {
    "name": "The model's name, which may hold slashes.",
    "response_id": "The response's id.",
}
_ASKED = "Needs an API key, if the server asks for keys."
_NOT_ASKED = "Needs no API key."
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": _ASKED},
    "key": {"type": "apiKey", "in": "header", "name": PLAIN_HEADER, "description": _ASKED},
}


class DescribedApp(FastAPI):
    """Describes bodies that handlers read themselves, so that they are read only once.

    No request is kept: a connection and its last request refer to each other until the garbage
    collector runs, which many connections with a body of two million tokens each need not trigger.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._described: dict[type[BaseModel], None] = {}

    def describe(self, route: Route) -> None:
        """Describes the types that a route's own description names."""
        types = (route.errors.answer, route.body)
        self._described |= dict.fromkeys(one for one in types if one is not None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            scope.get("state", {}).pop("body", None)

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            schema = super().openapi()
            _, definitions = models_json_schema(
                [(model, "validation") for model in self._described],
                ref_template="#/components/schemas/{model}",
            )
            schema["components"] = {
                "schemas": definitions["$defs"],
                "securitySchemes": _KEYS,
            }
            schema["security"] = [{}, *({name: []} for name in _KEYS)]
        return self.openapi_schema or schema


def description_of(route: Route) -> dict[str, Any]:
    """Returns the description of an endpoint, beside its handler's own."""
    success: dict[str, Any] = {"description": "Success."}
    if route.answers:
        success["content"] = {
            media: {"schema": {"type": "object" if media == JSON else "string"}}
            for media in route.answers
        }
    doc = " ".join((getdoc(route.handler) or "").split())
    is_open = route.path in OPEN_PATHS
    described: dict[str, Any] = {
        "tags": [route.group],
        "summary": doc,
        "description": _NOT_ASKED if is_open else _ASKED,
        "responses": _responses(success, route),
    }
    if is_open:
        described["security"] = []
    if route.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": _json(route.body, example=EXAMPLES[route.body]),
        }
    if parameters := [*map(_parameter, _PARAMETER.findall(route.path))]:
        described["parameters"] = parameters
    return described


def _parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _PARAMETERS[name],
        "schema": {"type": "string"},
    }


def _responses(success: dict[str, Any], route: Route) -> dict[str, Any]:
    content = _json(route.errors.answer)
    failures = {
        str(status): {"description": _REASONS[status], "content": content}
        for status in sorted(route.failures)
    }
    return {"200": success, **failures}


def _json(body: type[BaseModel], **fields: Any) -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}, **fields}}

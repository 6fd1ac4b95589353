"""The ASGI application: routes, and how failures are answered."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from router.openai.api import Api
from router.openai.errors import CLIENT_CLOSED_REQUEST
from router.openai.responses import error_response, json_response
from router.openai.types import Body, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from rpc.errors import Internal, RpcError

_BODIES: dict[str, type[Body]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}

_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""FastAPI's own would double our spans, and make a trace of each probe and scrape."""


class _App(FastAPI):
    """Describes bodies that handlers read themselves, so that they are read but once."""

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            schema = super().openapi()
            _, definitions = models_json_schema(
                [(body, "validation") for body in _BODIES.values()],
                ref_template="#/components/schemas/{model}",
            )
            schema.setdefault("components", {})["schemas"] = definitions["$defs"]
        return self.openapi_schema or schema


def make_app(api: Api, *, version: str, registry: CollectorRegistry | None = None) -> FastAPI:
    """Returns the application, with /metrics if there is a registry."""
    app = _App(title="Signalbox", version=version, telemetry=_NO_TELEMETRY)
    for path, handler in (
        ("/health", api.health),
        ("/version", api.version),
        ("/v1/models", api.models),
        ("/v1/models/{name:path}", api.model),
    ):
        app.add_api_route(path, handler, methods=["GET"], response_class=Response)
    for path, handler in (
        ("/v1/completions", api.completions),
        ("/v1/chat/completions", api.chat_completions),
        ("/tokenize", api.tokenize),
        ("/detokenize", api.detokenize),
    ):
        app.add_api_route(
            path,
            handler,
            methods=["POST"],
            response_class=Response,
            openapi_extra=_described(_BODIES[path]),
        )
    if registry is not None:
        app.add_route("/metrics", _metrics(registry), include_in_schema=False)
    app.add_exception_handler(RpcError, _on_rpc_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)
    return app


def _metrics(registry: CollectorRegistry) -> Callable[[Request], Awaitable[Response]]:
    async def show(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return show


def _described(body: type[Body]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{body.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def _on_rpc_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RpcError)
    return error_response(error, getattr(request.state, "body", None))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """No such path, no such method."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return json_response({"error": body}, status=error.status_code, headers=error.headers)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_bug(request: Request, error: Exception) -> Response:
    """The error itself is logged by uvicorn."""
    return error_response(Internal("internal error; the server's log says more"))

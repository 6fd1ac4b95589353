"""The ASGI application: its routes, and its answers to failures."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType, MethodType

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from signalbox_contract.errors import Internal, RpcError
from signalbox_router.apis.openai.requests.errors import CLIENT_CLOSED_REQUEST, NoSuchRoute
from signalbox_router.apis.openai.route import RoutedApi
from signalbox_router.apis.openai.streaming import ErrorResponse
from signalbox_router.http.docs_page import add_docs
from signalbox_router.http.openapi_description import (
    ABOUT,
    GROUPS,
    DescribedApp,
    description_of,
)
from signalbox_router.http.paths import NOT_POSTED, advice_on
from signalbox_rpc.metrics.exposition import encoder_for

_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""FastAPI's own telemetry would double our spans, and make a trace of each probe and scrape."""


MAX_PATH_CHARS = 100
"""Characters of an unknown method and path that the error message repeats."""

Collect = Callable[[], Awaitable[Collector]]


def make_app(
    apis: Iterable[RoutedApi],
    *,
    version: str,
    services: Mapping[str, ASGIApp] = MappingProxyType({}),
    metrics: Collect | None = None,
) -> FastAPI:
    """Returns the application, with /metrics if `metrics` is given.

    Args:
        services: what serves all paths below a path, such as that of a service of RPCs.
    """
    app = DescribedApp(
        title="Signalbox",
        description=ABOUT,
        openapi_tags=[{"name": name, "description": text} for name, text in GROUPS.items()],
        version=version,
        docs_url=None,
        redoc_url=None,
        telemetry=_NO_TELEMETRY,
    )
    for api in apis:
        for route in api.ROUTES:
            app.describe(route)
            app.add_api_route(
                route.path,
                MethodType(route.handler, api),
                methods=[route.method or ("GET" if route.body is None else "POST")],
                response_class=Response,
                openapi_extra=description_of(route),
            )
    for path, service in services.items():
        app.mount(path, service)
    add_docs(app)
    if metrics is not None:
        app.add_route("/metrics", _metrics(metrics), include_in_schema=False)
    app.add_exception_handler(RpcError, _on_rpc_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)
    return app


def _metrics(collect: Collect) -> Callable[[Request], Awaitable[Response]]:
    async def show(request: Request) -> Response:
        encode, content_type = encoder_for(request.headers.get("accept", ""))
        return Response(encode(await collect()), headers={"content-type": content_type})

    return show


async def _on_rpc_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RpcError)
    return ErrorResponse(error, getattr(request.state, "body", None))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answers unknown paths and methods."""
    assert isinstance(error, HTTPException)
    asked_for = f"{request.method} {request.url.path}"[:MAX_PATH_CHARS]
    is_unknown = error.status_code == HTTPStatus.NOT_FOUND
    hint = "; OpenAI's API is below /v1" if is_unknown and " /v1/" not in asked_for else ""
    message = f"{asked_for}: {error.detail}{hint}; /docs lists what is served"
    path = request.url.path
    if advice := advice_on(path) if is_unknown else NOT_POSTED.get(path):
        message = f"{asked_for}: not served; {advice}"
    headers = dict(error.headers or {})
    if headers.get("Allow") == "GET":  # HEAD comes here as GET
        headers["Allow"] = "GET, HEAD"
    return ErrorResponse(NoSuchRoute(message, status=error.status_code, headers=headers))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_bug(request: Request, error: Exception) -> Response:
    """Answers with INTERNAL; uvicorn logs the exception."""
    return ErrorResponse(Internal("internal error; the server's log says more"))

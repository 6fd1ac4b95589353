"""Allows chosen web pages to call the HTTP API from a browser (CORS). By default none may."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from signalbox_router.apis.agents import OMITTED_HEADER
from signalbox_router.apis.openai.bodies.unknown_fields import IGNORED_HEADER
from signalbox_rpc.http import request_ids

READABLE_HEADERS = (
    request_ids.HEADER, IGNORED_HEADER, OMITTED_HEADER, "request-id", "retry-after",
    "x-should-retry", "connect-content-encoding", "grpc-encoding",
)  # fmt: skip


def shared_with(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Returns the application, callable by pages of these origins; "*" is any.

    It runs before the key middleware, because a browser asks whether it may call before it shows a
    key. Keys travel in a header that the page sets, so no credentials of the browser's own are
    allowed.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=READABLE_HEADERS,
    )

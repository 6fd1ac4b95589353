"""An endpoint of the HTTP API, as the class that serves it declares it."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol

from starlette.requests import Request
from starlette.responses import Response

from signalbox_router.apis.openai.error_shape import OPENAI_ERRORS, ErrorShape
from signalbox_router.apis.openai.requests.types import Body

ALWAYS = (401, 403, 500, 503)
"""Statuses with which each endpoint may fail."""
OF_A_NAME = (404, *ALWAYS)
OF_TOKENS = (400, 404, 413, 415, 429, *ALWAYS)
"""Statuses of endpoints with a body that compute nothing on a worker."""
OF_WORK = (409, 504, *OF_TOKENS)
JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"


class Group(StrEnum):
    """Purpose of an endpoint, under which /docs lists it."""

    CHAT = "Chat"
    COMPLETIONS = "Completions"
    POOLING = "Embeddings and scores"
    TOKENS = "Tokens"
    MODELS = "Models and adapters"
    OPERATION = "Operation"


class Route(NamedTuple):
    """A path and its handler, with what /openapi.json says of them."""

    path: str
    handler: Callable[[Any, Request], Awaitable[Response]]
    """A function of the class that declares the route."""
    group: Group
    body: type[Body] | None = None
    """Type of the body that a client posts, if there is one."""
    failures: tuple[int, ...] = ALWAYS
    answers: tuple[str, ...] = (JSON,)
    """Media types of an answer; empty if it has no body."""
    errors: ErrorShape = OPENAI_ERRORS
    """Shape of the errors of the path and of all paths below it."""
    method: str = ""
    """Method; empty is POST with a body, and GET without."""


class RoutedApi(Protocol):
    """A class whose functions are handlers."""

    ROUTES: ClassVar[tuple[Route, ...]]

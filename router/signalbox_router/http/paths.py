"""Paths of the HTTP API: the spellings that clients use for one, and those of other APIs.

Clients build a path from a base URL with or without `/v1` and with or without a final slash.
"""

import re
from collections.abc import Iterable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from signalbox_router.apis.openai.error_shape import OPENAI_ERRORS, SCOPE_KEY, ErrorWriter
from signalbox_router.apis.openai.route import RoutedApi
from signalbox_router.http.docs_page import PAGE

_MODEL = re.compile("/+(v1/+)?models/(?P<name>.*[^/].*)", re.DOTALL)
"""Path of one model, whose name may hold slashes anywhere."""
_WITHOUT_V1 = frozenset(
    ("/chat/completions", "/completions", "/embeddings", "/models", "/responses")
)  # fmt: skip
_SLASHES = re.compile("//+")
_CHAT = "use /v1/chat/completions"
_OLLAMA = "Ollama's API is not served; use"
_FILES = "files are not stored here; send each request by itself, for example to"
NOT_SERVED = {
    "/v1/responses": "a response that is kept has GET, DELETE, input_items and cancel; with"
    " --response-store none there is none, and each request has its whole input",
    "/v1/responses/compact": "inputs are not compacted here; /v1/responses with truncation auto"
    " leaves the oldest turns out",
    "/v1/conversations": f"conversations are not stored here; {_CHAT} with all messages",
    "/v1/assistants": f"conversations are not stored here; {_CHAT} with all messages",
    "/v1/threads": f"conversations are not stored here; {_CHAT} with all messages",
    "/v1/realtime": f'{_CHAT} with "stream": true',
    "/v1/messages/batches": "send each message by itself to /v1/messages; many may run at once",
    "/v1/complete": "use /v1/completions",
    "/v1/files": f"{_FILES} /v1/chat/completions",
    "/v1/uploads": f"{_FILES} /v1/chat/completions",
    "/v1/batches": f"{_FILES} /v1/chat/completions; many may run at once, and `signalbox run-batch`"
    " sends those of a file",
    "/v1/vector_stores": "vectors are not stored here; /v1/embeddings makes them",
    "/v1/fine_tuning": "models are not trained here; LoRA adapters are served beside a model",
    "/v1/moderations": "a classifying model answers at /classify",
    "/v1/audio": "the models here read and write text alone",
    "/v1/images": "the models here read and write text alone",
    "/v1/videos": "the models here read and write text alone",
    "/v1beta/models": _CHAT,
    "/v1/chat": _CHAT,
    "/v2/chat": _CHAT,
    "/api": f"{_OLLAMA} OpenAI's below /v1",
    "/api/chat": f"{_OLLAMA} /v1/chat/completions",
    "/api/generate": f"{_OLLAMA} /v1/completions",
    "/api/embed": f"{_OLLAMA} /v1/embeddings",
    "/api/embeddings": f"{_OLLAMA} /v1/embeddings",
    "/api/tags": f"{_OLLAMA} /v1/models",
    "/api/ps": f"{_OLLAMA} /v1/models",
    "/api/show": f"{_OLLAMA} /v1/models",
    "/api/version": f"{_OLLAMA} /version",
    "/completion": "use /v1/completions",
    "/infill": "use /v1/completions; the prompt has the model's tokens for prefix and suffix",
    "/props": "use /v1/models, and /tokenizer_info for the chat template",
    "/slots": "use /load",
    "/apply-template": "use /tokenize with messages",
    "/lora-adapters": "use /v1/models, which lists adapters",
    "/generate": "use /v1/completions",
    "/generate_stream": 'use /v1/completions with "stream": true',
    "/info": "use /v1/models",
    "/get_model_info": "use /v1/models",
    "/server_info": "use /version and /v1/models",
    "/embed": "use /v1/embeddings",
    "/predict": "use /classify",
    "/invocations": "use /v1/chat/completions or /v1/completions",
    "/ping": "use /health",
}
"""Paths of APIs that are not served, or of which nothing below is, and what to use in place of each
and of all below it."""
NOT_POSTED = {
    "/v1/models/load": "use `signalbox load NAME`; a request that names a model loads it, too",
    "/v1/models/unload": "use `signalbox unload NAME`",
}
"""Paths of llama-server that clients post to, which are those of models by these names here."""


class Paths:
    """Gives the application each path in the form that its routes have, and the shape that errors
    have there."""

    def __init__(self, app: ASGIApp, shapes: Mapping[str, ErrorWriter]) -> None:
        """`shapes` has those of paths, and of all below each, that are not OpenAI's."""
        self._app = app
        self._shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] = served_path(scope["path"])
        for parent, shape in self._shapes.items():
            if path == parent or path.startswith(f"{parent}/"):
                scope[SCOPE_KEY] = shape
        await self._app(scope, receive, send)


def error_shapes(apis: Iterable[RoutedApi]) -> dict[str, ErrorWriter]:
    """Returns the shapes of errors that are not OpenAI's, by path."""
    routes = (route for api in apis for route in api.ROUTES)
    return {route.path: route.errors for route in routes if route.errors is not OPENAI_ERRORS}


def served_path(path: str) -> str:
    """Returns the path without a final slash and empty parts, and with the /v1 that it lacks."""
    if path.startswith(PAGE):  # the page's links are relative to it
        return path
    if model := _MODEL.fullmatch(path):
        return f"/v1/models/{model['name']}"
    path = _SLASHES.sub("/", path).removesuffix("/") or "/"
    is_without = path in _WITHOUT_V1 or path.startswith("/responses/")
    return f"/v1{path}" if is_without else path


def advice_on(path: str) -> str:
    """Returns what to use in place of a path of another API; empty for any other path."""
    while path:
        if advice := NOT_SERVED.get(path) or NOT_SERVED.get(f"/v1{path}"):
            return advice
        path = path.rpartition("/")[0]
    return ""

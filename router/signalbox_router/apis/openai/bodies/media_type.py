"""Requires that bodies are declared as JSON, because web pages may send other types anywhere.

A browser asks the server first (CORS) before a page of another origin sends `application/json`. It
does not ask for `text/plain`, nor for the type of a form, nor for a body without a type.
"""

from starlette.requests import Request

from signalbox_router.apis.openai.requests.errors import UnsupportedMediaType

JSON = "application/json"
MAX_SHOWN_CHARS = 100


def require_json(request: Request) -> None:
    """Raises UnsupportedMediaType unless the type is JSON; a request without a body needs no
    type."""
    given = request.headers.getlist("content-type")
    if not given and not _has_body(request):
        return
    if not given or any(_media_type(value) != JSON for value in given):
        said = f"says {', '.join(given)[:MAX_SHOWN_CHARS]!r}" if given else "has none"
        raise UnsupportedMediaType(
            f"Content-Type: the body must be {JSON}; with curl, give -H 'Content-Type: {JSON}';"
            f" the request {said}"
        )


def _media_type(value: str) -> str:
    return value.partition(";")[0].strip().lower()


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length") not in (
        None,
        "0",
    )

"""Checks HTTP's API keys before a byte of the body is read.

/health and the pages that describe the API need no key: a probe has none, a browser cannot send one
for a page, and the pages hold nothing of a request, a model or a tenant.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from signalbox_contract.errors import Unauthenticated
from signalbox_router.apis.openai.streaming import ErrorResponse
from signalbox_router.http.docs_page import ASSETS, DESCRIPTION, PAGE
from signalbox_router.limits.api_keys import KeyRing

OPEN_PATHS = {"/health", PAGE, DESCRIPTION}


class KeyGate:
    """Passes only requests with a known key to the application."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope["path"]):
            headers = [(name.decode("latin-1"), value) for name, value in scope["headers"]]
            try:
                await self._keys.authenticate(headers)
            except Unauthenticated as error:
                await ErrorResponse(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(f"{ASSETS}/")

"""Checks HTTP's API keys before a byte of the body is read. /health needs none."""

from starlette.types import ASGIApp, Receive, Scope, Send

from contract.errors import Unauthenticated
from router.keys.api_keys import KeyRing
from router.openai.streaming import error_response

OPEN_PATHS = {"/health"}


class KeyGate:
    """Passes only requests with a known key to the application."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            headers = [(name.decode("latin-1"), value) for name, value in scope["headers"]]
            try:
                self._keys.authenticate(headers)
            except Unauthenticated as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

"""Rules of RFC 9110 and 9112 for every HTTP port that a parser leaves to the application.

HEAD is answered where GET is, with the same headers; the parser drops the body. A target may have
the absolute form, http://host/path. Each answer names its request in `x-request-id`.
"""

import re
from collections.abc import Awaitable
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from signalbox_rpc.http import request_ids
from signalbox_rpc.http.errors import HttpError

_ABSOLUTE = re.compile("https?://", re.IGNORECASE)
BUG = HttpError(500, "internal error; the server's log says more", closes=True)


class HttpSemantics:
    """Precedes all other parts of an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        def named(message: Message) -> Awaitable[None]:  # no coroutine of its own for each event
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = [*message.get("headers", ()), request_ids.header_of(scope)]
                message = {**message, "headers": headers}
            return send(message)

        try:
            await self._app(_plain(scope), receive, named)
        except Exception:
            if not has_begun:
                await BUG.send(named)
            raise


def _plain(scope: Scope) -> Scope:
    """Returns the scope of a request for a path, with GET for HEAD."""
    changed: dict[str, Any] = {}
    if scope["method"] == "HEAD":  # the parser's own scope keeps the method
        changed["method"] = "GET"
    if _ABSOLUTE.match(scope["path"]):  # only httptools has removed the host
        path = urlsplit(scope["raw_path"].decode("ascii", "replace")).path or "/"
        changed |= {"path": unquote(path), "raw_path": path.encode()}
    return {**scope, **changed} if changed else scope

"""Serves the files of the console, a web page, on the router's HTTP port.

The files need no API key: a browser cannot send one for a page, and they hold nothing of a request,
a model or a tenant. The page sends its user's key with each of its calls.
"""

import gzip
import re
from hashlib import sha256
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from signalbox_router.console.page_headers import page_headers

_FOLDER = Path(__file__).with_name("static")
_ROOT, _INDEX = "/", "/index.html"
_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript",
          ".svg": "image/svg+xml"}  # fmt: skip
_PREFIX = re.compile(r"(/[\w.~-]+)+", re.ASCII)
"""Prefix of paths that a proxy may name in X-Forwarded-Prefix."""


class _File:
    """A file as it is sent."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self._content = content
        self._compressed = gzip.compress(content, mtime=0)
        self._digest = sha256(content).hexdigest()[:32]
        self._media_type = media_type

    def answer(self, headers: Headers, *, vary: str = "accept-encoding") -> Response:
        """Returns the answer to a GET; 304 if the browser has the file."""
        accepted = headers.get("accept-encoding", "").split(",")
        is_compressed = "gzip" in (one.strip() for one in accepted)
        etag = f'"{self._digest}{"-gz" if is_compressed else ""}"'
        sent = {"etag": etag, "cache-control": "no-cache", "vary": vary, **page_headers()}
        if etag in re.findall('"[^"]*"', headers.get("if-none-match", "")):
            return Response(status_code=304, headers=sent)
        if is_compressed:
            sent["content-encoding"] = "gzip"
        content = self._compressed if is_compressed else self._content
        return Response(content, headers=sent, media_type=self._media_type)


class ConsoleFiles:
    """Answers with the console's files, at the root for clients that ask for HTML; passes all other
    requests to the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._files = {path: _File(*_read(path)) for path in PATHS if path != _ROOT}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_get = scope["type"] == "http" and scope["method"] == "GET"  # HEAD comes as GET
        if not is_get or scope["path"] not in PATHS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["path"] != _ROOT:
            await self._files[scope["path"]].answer(headers)(scope, receive, send)
        elif "text/html" in headers.get("accept", ""):
            vary = "accept, accept-encoding, x-forwarded-prefix"
            await self._index(headers).answer(headers, vary=vary)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _index(self, headers: Headers) -> _File:
        """Returns the page. If a proxy names the prefix that it adds, links begin there: they are
        right also where the browser's address lacks the final slash."""
        prefix = headers.get("x-forwarded-prefix", "").removesuffix("/")
        if not _PREFIX.fullmatch(prefix):
            return self._files[_INDEX]
        content, media_type = _read(_INDEX)
        base = f'<head><base href="{prefix}/" />'.encode()
        return _File(content.replace(b"<head>", base, 1), media_type)


def _read(path: str) -> tuple[bytes, str]:
    file = _FOLDER / path.removeprefix("/")
    return file.read_bytes(), _TYPES.get(file.suffix, "text/plain")


PATHS = frozenset(
    [_ROOT, *(f"/{file.relative_to(_FOLDER)}" for file in _FOLDER.rglob("*") if file.is_file())]
)

"""Refuses HTTP requests by their heads, before an application sees them, on every HTTP port."""

import logging
from collections.abc import Iterator

from starlette.types import ASGIApp, Receive, Scope, Send

from signalbox_rpc.http import port_limits
from signalbox_rpc.http.errors import HttpError
from signalbox_rpc.http.host_check import ANY, HostCheck, HttpAccess, is_same_origin

logger = logging.getLogger(__name__)

HEADERS_MANY = HttpError(
    431, f"the request has more than {port_limits.MAX_HEADERS} headers", closes=True
)
HEAD_LARGE = HttpError(
    431, f"the headers have more than {port_limits.MAX_HEAD_BYTES} bytes", closes=True
)
"""Refuses a head behind another request too, of which a connection does not count each byte."""
MAX_SHOWN_CHARS = 200
"""Characters of a header's value that an error shows."""
VERSIONS = ("1.0", "1.1")


class HeadGate:
    """Passes on requests whose framing is unambiguous, and whose host and origin are allowed.

    Args:
        is_loopback: True if only this machine reaches the port.
    """

    def __init__(self, app: ASGIApp, *, access: HttpAccess, is_loopback: bool) -> None:
        self._app = app
        self._hosts = HostCheck(access.hosts, is_loopback=is_loopback)
        self._origins = frozenset(access.origins)
        self._pages = access.pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = next(self._errors(scope), None)
        if error is None:
            await self._app(scope, receive, send)
            return
        logger.warning("request refused: %(reason)s", {"reason": error.message})
        await error.send(send)

    def _errors(self, scope: Scope) -> Iterator[HttpError]:
        version, headers = scope["http_version"], scope["headers"]
        if version not in VERSIONS:
            yield HttpError(505, f"HTTP/{version} is not served; use HTTP/1.1", closes=True)
        if len(headers) > port_limits.MAX_HEADERS:
            yield HEADERS_MANY
        read: dict[bytes, list[str]] = {name: [] for name in _READ}
        num_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        for name, value in headers:
            num_bytes += len(name) + len(value)
            if name in read:
                read[name].append(value.decode("latin-1"))
        if num_bytes > port_limits.MAX_HEAD_BYTES:
            yield HEAD_LARGE
        if read[_ENCODING] and (read[_LENGTH] or version == "1.0"):
            message = "Transfer-Encoding together with Content-Length, or in HTTP/1.0, is ambiguous"
            yield HttpError(400, message, closes=True)
        hosts = read[_HOST]
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            message = f"a request has one Host header, and this one has {len(hosts)}"
            yield HttpError(400, message, closes=True)
        host = "".join(hosts)
        yield from self._foreign_hosts(scope, host)
        is_link = self._is_link(scope, mode=read[_MODE], dest=read[_DEST])
        sites = [] if is_link else read[_SITE]
        yield from self._foreign_pages(scope, host, read[_ORIGIN], sites)

    def _foreign_hosts(self, scope: Scope, host: str) -> Iterator[HttpError]:
        local_address = str((scope.get("server") or ("",))[0])
        if host and not self._hosts.answers(host, local_address):
            message = "Host: requests for this name are not answered here; --allowed-hosts names"
            yield HttpError(403, f"{message} the hosts that are", given=_shown(host))

    def _is_link(self, scope: Scope, *, mode: list[str], dest: list[str]) -> bool:
        """Returns whether a browser asks for one of our pages to show it in place of another page,
        which cannot read it then: in no frame, and by no script."""
        is_shown = (mode, dest) == (["navigate"], ["document"])
        return is_shown and scope["method"] == "GET" and scope["path"] in self._pages

    def _foreign_pages(
        self, scope: Scope, host: str, origins: list[str], sites: list[str]
    ) -> Iterator[HttpError]:
        if ANY in self._origins:
            return
        is_named = bool(origins) and self._origins.issuperset(origins)
        for origin in origins:
            if not is_named and not is_same_origin(origin, host, scheme=scope["scheme"]):
                message = "Origin: pages of it may not call this server; --allowed-origins names"
                yield HttpError(403, f"{message} those that may", given=_shown(origin))
        if not is_named and "cross-site" in sites:
            message = "Sec-Fetch-Site: pages of other sites may not call this server;"
            yield HttpError(403, f"{message} --allowed-origins names those that may")


_ENCODING, _LENGTH = b"transfer-encoding", b"content-length"
_HOST, _ORIGIN, _SITE = b"host", b"origin", b"sec-fetch-site"
_MODE, _DEST = b"sec-fetch-mode", b"sec-fetch-dest"
_READ = (_ENCODING, _LENGTH, _HOST, _ORIGIN, _SITE, _MODE, _DEST)


def _shown(value: str) -> str:
    return value[:MAX_SHOWN_CHARS]

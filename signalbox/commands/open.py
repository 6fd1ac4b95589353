"""`signalbox open`: opens the console of a running router in the browser."""

import argparse
import http.client
import os
import ssl
import urllib.error
import urllib.request
import webbrowser
from typing import Any
from urllib.parse import quote, urlsplit

from signalbox.settings.environment import ENV_PREFIX

DEFAULT_URL = "http://127.0.0.1:8000/"
TIMEOUT_S = 5.0


class NoConsole(RuntimeError):
    """The address has no console, or there is no browser; the message says which in one line."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        metavar="URL",
        default=os.environ.get(ENV_PREFIX + "URL", DEFAULT_URL),
        help="address of the router's HTTP port, as `signalbox serve` prints it"
        f" (default {DEFAULT_URL}; env {ENV_PREFIX}URL)",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Prints the console's address and opens it. Raises NoConsole or ValueError."""
    url = _page_url(options["url"])
    _check(url)
    print(url, flush=True)
    if not webbrowser.open(url):
        raise NoConsole("there is no browser here; open the address above in one")


def _page_url(given: str) -> str:
    """Returns the console's address, of a URL or of HOST:PORT."""
    url = urlsplit(given if "://" in given else f"http://{given}")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"--url is {given!r}; give http://HOST:PORT or https://HOST:PORT")
    if url.username is not None:
        raise ValueError("--url names a user; keys are given in the page, not in its address")
    path = quote(url.path, safe="/%:@!$&'(),;=*+").rstrip("/").removesuffix("/v1")
    return f"{url.scheme}://{url.netloc}{path}/"


def _check(url: str) -> None:
    """Raises NoConsole unless the address answers a browser with a page."""
    request = urllib.request.Request(url, headers={"accept": "text/html"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            kind = answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        raise NoConsole(f"{url} answers {error.code} {error.reason}, and has no console") from None
    except http.client.HTTPException:
        raise NoConsole(
            f"{url} is no HTTP port; the console is on that of the HTTP API, whose address"
            " `signalbox serve` prints"
        ) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return  # the browser has its own authorities, and asks its user
        raise NoConsole(
            f"{url} does not answer ({reason}); start `signalbox serve`, or give --url"
        ) from None
    if kind != "text/html":
        raise NoConsole(
            f"{url} shows no console: its router is on a host that others reach, or has"
            " --no-console; see --console there"
        )

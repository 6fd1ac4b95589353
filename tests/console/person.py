"""A person at a browser, and what must never happen there."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request

from tests.waiting import EVENT_S

_TELLS_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy ${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`));
"""
LOOK_MS = 10_000
"""Milliseconds in which a page has to show itself after a failure, which may be that it hangs."""
_OWN_SCHEMES = ("data", "blob")


@dataclass
class Person:
    """A profile of the browser that has the console open."""

    context: BrowserContext
    url: str
    page: Page
    _told: list[str] = field(default_factory=list)
    """Errors of the console, violations of its policy, and requests to other hosts."""
    _said: list[str] = field(default_factory=list)
    """All that the pages write to the browser's console."""
    _unanswered: dict[Request, str] = field(default_factory=dict)
    _allowed: list[str] = field(default_factory=lambda: [r"/favicon\.ico\)$"])
    """Patterns of errors that are no problem; browsers ask any page's host for an icon."""

    def open(self, view: str = "chat") -> Page:
        """Shows a view; returns its page."""
        self.page.goto(f"{self.url}#/{view}")
        return self.page

    @property
    def problems(self) -> list[str]:
        return [one for one in self._told if not any(re.search(p, one) for p in self._allowed)]

    def allows(self, pattern: str) -> None:
        """Says which errors a test provokes, also behind this call."""
        self._allowed.append(pattern)

    def hear(self, message: ConsoleMessage) -> None:
        self._said.append(f"{message.type}: {message.text}")
        if message.type == "error":
            self._told.append(f"{message.text} ({message.location.get('url')})")

    def see(self, request: Request) -> None:
        self._unanswered[request] = f"{request.method} {request.url}"
        url = urlsplit(request.url)
        if url.scheme not in _OWN_SCHEMES and url.netloc != urlsplit(self.url).netloc:
            self._told.append(f"request to another host: {request.url}")

    def see_end(self, request: Request) -> None:
        self._unanswered.pop(request, None)

    def fail(self, error: Error) -> None:
        self._told.append(str(error))

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Adds to an error what this person sees."""
        try:
            yield
        except BaseException as error:
            for page in self.context.pages:
                error.add_note(f"{page.url} shows\n{_seen(page)}")
            error.add_note("\n".join(["The browser's console:", *self._said]))
            error.add_note("\n".join(["Requests under way:", *self._unanswered.values()]))
            raise


def _seen(page: Page) -> str:
    """Returns a page in words, and where its picture is."""
    picture = Path(tempfile.mkdtemp(prefix="console-")) / "failed.png"
    try:
        page.screenshot(path=picture, timeout=LOOK_MS)
        return f"{page.locator('body').aria_snapshot(timeout=LOOK_MS)}\n(picture: {picture})"
    except Error as error:
        return f"nothing: {error}"


@contextmanager
def watched(browser: Browser, url: str, **settings: Any) -> Iterator[Person]:
    """Yields someone with a new profile, who has no problem in the end.

    Args:
        settings: those of the profile, such as its size, its theme and its language.
    """
    settings = {"viewport": {"width": 1440, "height": 900}, **settings}
    context = browser.new_context(accept_downloads=True, reduced_motion="reduce", **settings)
    context.set_default_timeout(EVENT_S * 1000)
    context.add_init_script(_TELLS_VIOLATIONS)
    person = Person(context, url, context.new_page())
    context.on("console", person.hear)
    context.on("request", person.see)
    context.on("requestfinished", person.see_end)
    context.on("requestfailed", person.see_end)
    context.on("weberror", lambda raised: person.fail(raised.error))
    try:
        with person.telling():
            yield person
    finally:
        context.close()
    assert not person.problems, "\n".join(person.problems)

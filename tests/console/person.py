"""A person at a browser, and what must never happen there."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request

from tests.waiting import EVENT_S

_TELLS_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy ${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`));
"""
_OWN_SCHEMES = ("data", "blob")


@dataclass
class Person:
    """A profile of the browser that has the console open."""

    context: BrowserContext
    url: str
    page: Page
    problems: list[str] = field(default_factory=list)
    """Errors of the console, violations of its policy, and requests to other hosts."""

    def open(self, view: str = "chat") -> Page:
        """Shows a view; returns its page."""
        self.page.goto(f"{self.url}#/{view}")
        return self.page

    def allows(self, pattern: str) -> None:
        """Takes errors that a test may have provoked from the problems."""
        self.problems[:] = [one for one in self.problems if not re.search(pattern, one)]

    def _told(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"{message.text} ({message.location.get('url')})")

    def _asked(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in _OWN_SCHEMES and url.netloc != urlsplit(self.url).netloc:
            self.problems.append(f"request to another host: {request.url}")

    def _failed(self, error: Error) -> None:
        self.problems.append(str(error))


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
    context.on("console", person._told)
    context.on("request", person._asked)
    context.on("weberror", lambda raised: person._failed(raised.error))
    try:
        yield person
    finally:
        context.close()
    assert not person.problems, "\n".join(person.problems)

"""A browser for all tests, services for all tests, and for each test a profile of its own."""

from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.sync_api import Browser, expect, sync_playwright

from signalbox_router.main import Router
from tests.console.person import Person, watched
from tests.console.stack import Services, serving, url_of
from tests.waiting import EVENT_S

__all__ = ["browser", "person", "portal", "router", "services"]

CHROMIUM = "/usr/bin/chromium"
OTHER_NAME = "llm.example"
"""Name of this machine, as all that end so are; browsers do not take it for the loopback."""
ARGUMENTS = [
    *("--no-sandbox", "--no-proxy-server", "--disable-dev-shm-usage"),
    "--host-resolver-rules=MAP *.example 127.0.0.1",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=EVENT_S * 1000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium
        browser = chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=EVENT_S * 1000)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """The loop of the services, in a thread of its own: playwright has that of the tests."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="session")
def services(portal: BlockingPortal) -> Iterator[Services]:
    with serving(portal) as services:
        yield services


@pytest.fixture(scope="session")
def router(services: Services) -> Iterator[Router]:
    with services.router() as router:
        yield router


@pytest.fixture
def person(browser: Browser, router: Router, services: Services) -> Iterator[Person]:
    """Someone who has opened the console in a profile of their own."""
    with watched(browser, url_of(router)) as person:
        yield person
    services.check_idle()

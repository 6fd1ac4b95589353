"""How people come to the console, and what surrounds its views."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from anyio.from_thread import BlockingPortal
from playwright.sync_api import Browser, Locator, expect

from signalbox_router.main import Router
from tests.console.chat import ask
from tests.console.person import Person, watched
from tests.console.proxy import prefixing_proxy
from tests.console.stack import Services, url_of
from tests.ports import free_port
from tests.router.limits.test_operator_access import make_keys

VIEWS = ("Chat", "Live", "Why")


def test_the_address_shows_the_chat_and_leads_to_each_view(person: Person) -> None:
    person.page.goto(person.url)
    views = person.page.get_by_role("navigation", name="Views")
    for title in VIEWS:
        link = views.get_by_role("link", name=title)
        link.click()
        expect(link).to_have_attribute("aria-current", "page")
        expect(person.page).to_have_title(re.compile(title))
    person.page.go_back()
    expect(views.get_by_role("link", name="Live")).to_have_attribute("aria-current", "page")


@pytest.mark.parametrize("address", ["nothing", "toString", "chat/%"])
def test_an_unknown_view_is_the_chat(address: str, person: Person) -> None:
    page = person.open(address)
    link = page.get_by_role("navigation", name="Views").get_by_role("link", name="Chat")
    expect(link).to_have_attribute("aria-current", "page")


def test_a_theme_is_kept_and_the_systems_followed(browser: Browser, router: Router) -> None:
    with watched(browser, url_of(router), color_scheme="dark") as person:
        page = person.open()
        root = page.locator("html")
        expect(root).to_have_attribute("data-theme", "dark")
        page.emulate_media(color_scheme="light")
        expect(root).to_have_attribute("data-theme", "light")
        page.get_by_label("Theme").select_option("dark")
        expect(root).to_have_attribute("data-theme", "dark")
        page.reload()
        expect(root).to_have_attribute("data-theme", "dark")


BLOCKED = """
const deny = () => { throw new DOMException("denied", "SecurityError"); };
for (const name of ["localStorage", "sessionStorage"])
  Object.defineProperty(window, name, { get: deny });
IDBFactory.prototype.open = deny;
LockManager.prototype.request = async () => deny();
"""
"""What Chromium refuses to a page if its user blocks all cookies."""


def test_a_browser_that_keeps_nothing_shows_each_view(person: Person, services: Services) -> None:
    person.context.add_init_script(BLOCKED)
    page = person.open()
    expect(page.get_by_text("The browser does not keep conversations: denied")).to_be_visible()
    expect(ask(page, "Forget this")).to_contain_text("You said: Forget this")
    page.get_by_label("Theme").select_option("dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.goto(f"{person.url}#/live")
    expect(page.get_by_role("main")).to_contain_text("1 worker")


def test_a_proxy_may_add_a_prefix(
    browser: Browser, router: Router, services: Services, portal: BlockingPortal
) -> None:
    assert router.http is not None
    proxy = prefixing_proxy(router.http.port, "/models/signalbox/")
    with (
        portal.wrap_async_context_manager(proxy) as url,
        watched(browser, url) as person,
    ):
        page = person.open()
        say(person, "Behind a prefix")
        expect(page.get_by_text("You said: Behind a prefix")).to_be_visible()
        person.open("live")
        expect(page.get_by_role("main")).to_contain_text("127.0.0.1")
    services.check_idle()


def test_a_link_from_another_page_opens_it_and_a_fetch_does_not(person: Person) -> None:
    """Only a navigation passes the check of origins, and only to the console's own files."""
    page = person.page
    links = f'<a href="{person.url}">The console</a><a href="{person.url}v1/models">An API</a>'
    with page_of_another_site(links) as elsewhere:
        for target, name in (("v1/models", "An API"), ("", "The console")):
            page.goto(elsewhere)
            with page.expect_response(f"{person.url}{target}") as answer:
                page.get_by_role("link", name=name).click()
            assert answer.value.status == (403 if target else 200)
        expect(page.get_by_role("navigation", name="Views")).to_be_visible()
        page.goto(elsewhere)
        for target in ("", "main.js", "signalbox.inference.v1.InferenceService/ListModels"):
            with page.expect_response(f"{person.url}{target}") as answer:
                page.evaluate(FETCH, f"{person.url}{target}")
            assert answer.value.status == 403
        person.allows("localhost|CORS|403|net::ERR|favicon")


FETCH = "url => fetch(url, {mode: 'no-cors', headers: {accept: 'text/html'}}).catch(() => {})"


def test_it_cannot_be_framed(person: Person) -> None:
    page = person.page
    with page_of_another_site(f'<iframe src="{person.url}"></iframe>') as elsewhere:
        with page.expect_response(person.url) as answer:
            page.goto(elsewhere)
        assert answer.value.status == 403
        person.allows("localhost|frame-ancestors|403")


@contextmanager
def page_of_another_site(body: str) -> Iterator[str]:
    """Serves a page; yields its address, whose host is not the console's."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f"<!doctype html><title>Elsewhere</title>{body}".encode())

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


def test_the_server_goes_and_comes_back(browser: Browser, services: Services) -> None:
    port = free_port()
    with ExitStack() as running:
        router = running.enter_context(services.router(http_port=port))
        with watched(browser, url_of(router)) as person:
            page = person.open()
            say(person, "Before")
            expect(page.get_by_text("You said: Before")).to_be_visible()
            running.close()
            say(person, "Meanwhile")
            expect(page.get_by_role("main").get_by_text("does not answer").first).to_be_visible()
            with services.router(http_port=port):
                page.get_by_role("button", name="Try again").click()
                expect(page.get_by_text("You said: Meanwhile")).to_be_visible()
            person.allows("ERR_|503")


def say(person: Person, text: str) -> None:
    """Sends a message in the chat."""
    box = person.page.get_by_role("textbox", name="Message")
    box.fill(text)
    box.press("Enter")


def test_an_operators_key_shows_all_and_others_the_chat(
    browser: Browser, services: Services, tmp_path: Path
) -> None:
    make_keys(tmp_path / "keys.yaml")
    with (
        services.router(api_keys=str(tmp_path / "keys.yaml")) as router,
        watched(browser, url_of(router)) as person,
    ):
        page = person.open("live")
        dialog = page.get_by_role("dialog")
        give_key(dialog, "alice")
        expect(dialog).to_contain_text("operator")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        person.open("chat")
        say(person, "With a client's key")
        expect(page.get_by_text("You said: With a client's key")).to_be_visible()
        person.open("live")
        page.get_by_role("button", name="Key").click()
        give_key(dialog, "boss")
        expect(page.get_by_role("main")).to_contain_text("127.0.0.1")
        person.allows("40[13]")
    services.check_idle()


def test_a_key_stays_in_its_tab(browser: Browser, services: Services, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys.yaml")
    with (
        services.router(api_keys=str(tmp_path / "keys.yaml")) as router,
        watched(browser, url_of(router)) as person,
    ):
        page = person.open("chat")
        give_key(page.get_by_role("dialog"), "alice")
        expect(page.get_by_role("dialog")).to_be_hidden()
        assert "alice" not in page.evaluate("JSON.stringify({...localStorage})")
        page.reload()
        expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        expect(page.get_by_role("dialog")).to_be_hidden()
        other = person.context.new_page()
        other.goto(page.url)
        expect(other.get_by_role("dialog")).to_be_visible()
        person.allows("401")


def give_key(dialog: Locator, key: str) -> None:
    """Answers the dialog that asks for a key."""
    dialog.get_by_label("Key").fill(key)
    dialog.get_by_role("button", name="Use", exact=True).click()

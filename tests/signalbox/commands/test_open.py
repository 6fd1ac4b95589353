"""`signalbox open`, and the lines of `signalbox serve` that lead to the console."""

import re
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.signalbox.stacks import Stack, run_here, serve
from tests.waiting import wait_until


class Browser:
    """A browser that keeps what it was to open."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.is_there = is_there
        self.opened: list[str] = []

    def open(self, url: str) -> bool:
        self.opened.append(url)
        return self.is_there


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serve(tmp_path_factory.mktemp("stack") / "log", "--simulate") as stack:
        yield stack


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    browser = Browser()
    monkeypatch.setattr(webbrowser, "open", browser.open)
    return browser


def console_url(stack: Stack) -> str:
    """Returns the console's address, which the line behind that of the router has."""
    wait_until(lambda: "console at" in stack.log.read_text(), told=stack.log.read_text)
    found = re.search(r"\(for --router\).*\n.* console at (\S+)\n", stack.log.read_text())
    assert found is not None, stack.log.read_text()
    return found[1]


def test_serve_ends_with_the_addresses_for_router_and_console(stack: Stack) -> None:
    assert f"{console_url(stack)}v1" == stack.http_url()


def test_a_stack_without_a_console_names_none(tmp_path: Path) -> None:
    with serve(tmp_path / "log", "--simulate", "--no-console") as stack:
        done = run_here("open", "--url", stack.http_url())
    assert "console at" not in stack.log.read_text()
    assert (done.returncode, done.stdout) == (1, "")
    assert "no console" in done.stderr


def test_the_console_is_opened(stack: Stack, browser: Browser) -> None:
    url = console_url(stack)
    for given in (url, stack.http_url(), url.removeprefix("http://")):
        done = run_here("open", "--url", given)
        assert (done.returncode, done.stdout) == (0, f"{url}\n"), done.stderr
    assert browser.opened == [url] * 3


def test_the_address_is_told_where_no_browser_is(stack: Stack, browser: Browser) -> None:
    browser.is_there = False
    done = run_here("open", "--url", console_url(stack))
    assert (done.returncode, done.stdout) == (1, f"{console_url(stack)}\n")
    assert "no browser" in done.stderr


def test_what_is_not_the_http_port_is_refused(stack: Stack, browser: Browser) -> None:
    nobody = run_here("open", "--url", f"http://127.0.0.1:{free_port()}")
    assert "does not answer" in nobody.stderr and "signalbox serve" in nobody.stderr
    grpc = run_here("open", "--url", stack.address)
    assert "no HTTP port" in grpc.stderr
    named = run_here("open", "--url", console_url(stack) + "ü")
    assert "answers 404" in named.stderr
    invalid = run_here("open", "--url", "ftp://host")
    assert "give http://HOST:PORT" in invalid.stderr
    secret = run_here("open", "--url", f"http://user:secret@{stack.http_url()[7:]}")
    assert "keys are given in the page" in secret.stderr
    assert "secret" not in secret.stderr
    refused = (nobody, grpc, named, invalid, secret)
    assert {one.returncode for one in refused} == {1}
    assert not browser.opened

"""From where people reach the console: by a slow link, and on a port that others reach."""

from pathlib import Path

from playwright.sync_api import Browser, expect

from signalbox_router.main import Router
from tests.console.chat import answers, ask, send
from tests.console.fixtures import OTHER_NAME
from tests.console.person import Person, watched
from tests.console.stack import Services
from tests.console.test_live import map_of, requests_of
from tests.console.test_shell import give_key
from tests.router.limits.test_operator_access import make_keys
from tests.waiting import wait_until

LATENCY_MS = 400
SLOW = {"latency": LATENCY_MS, "downloadThroughput": 20_000, "uploadThroughput": 10_000}
"""Bytes/s, as of a telephone in a train."""
OPEN = {"host": "0.0.0.0", "insecure": True}
LONGEST_MS = "Math.max(...performance.getEntriesByType('resource').map((one) => one.duration))"


def test_a_slow_link(person: Person, services: Services, router: Router) -> None:
    """Answers and Live are shown as they come, and what is ended on this side ends on the other."""
    services.model.answers["Go on and on"] = "on and on, " * 1_000
    link = person.context.new_cdp_session(person.page)
    link.send("Network.enable")
    link.send("Network.emulateNetworkConditions", {"offline": False, **SLOW})
    page = person.open()
    assert page.evaluate(LONGEST_MS) >= LATENCY_MS
    expect(ask(page, "From a train")).to_contain_text("You said: From a train")
    send(page, "Go on and on")
    expect(answers(page).last).to_contain_text("on and on, on and on")
    page.get_by_role("button", name="Stop").click()
    expect(answers(page).last).to_contain_text("stopped by you")
    wait_until(lambda: services.num_live() == 0)
    person.open("live")
    with services.load(router, num_requests=2):
        expect(requests_of(page)).to_have_count(2)
    expect(requests_of(page)).to_have_count(0)


def test_a_port_that_others_reach_has_no_console(browser: Browser, services: Services) -> None:
    with (
        services.router(**OPEN) as router,
        watched(browser, url_for_others(router)) as person,
    ):
        answer = person.page.goto(person.url)
        assert answer is not None
        assert "json" in answer.headers["content-type"]
        expect(person.page.get_by_role("navigation")).to_have_count(0)
        answer = person.page.goto(f"{person.url}main.js")
        assert answer is not None and answer.status == 404
        person.allows("404")


def test_others_open_it_with_keys_by_a_name_that_is_allowed(
    browser: Browser, services: Services, tmp_path: Path
) -> None:
    """By plain HTTP browsers give such a page no locks, no clipboard and no digests."""
    make_keys(tmp_path / "keys.yaml")
    keys = str(tmp_path / "keys.yaml")
    with (
        services.router(**OPEN, console=True, api_keys=keys, allowed_hosts=OTHER_NAME) as router,
        watched(browser, url_for_others(router)) as person,
    ):
        page = person.open("live")
        assert page.evaluate("isSecureContext") is False
        give_key(page.get_by_role("dialog"), "boss")
        expect(map_of(page)).to_be_visible()
        person.open("chat")
        expect(ask(page, "From elsewhere")).to_contain_text("You said: From elsewhere")
        person.allows("401")
        answer = page.goto(url_for_others(router).replace("llm.", "other."))
        assert answer is not None and answer.status == 403
        person.allows("Opener-Policy|other.example|403")


def url_for_others(router: Router) -> str:
    """Returns the address of the HTTP port by a name that is not this machine's loopback."""
    assert router.http is not None
    return f"http://{OTHER_NAME}:{router.http.port}/"

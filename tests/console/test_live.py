"""What an operator sees of the schedulers, now and over the last minute."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import httpx2
from playwright.sync_api import Browser, Locator, Page, expect

from signalbox_router.main import Router
from tests.console.person import Person, watched
from tests.console.stack import MODEL, Services, num_watchers, url_of
from tests.ports import free_port
from tests.waiting import EVENT_S, wait_until


def requests_of(page: Page) -> Locator:
    """Returns the rows of the requests on workers."""
    return page.get_by_role("region", name="Requests").locator("tbody").get_by_role("row")


def map_of(page: Page) -> Locator:
    """Returns the map of the blocks of the first worker's device."""
    return page.get_by_role("img", name=re.compile("^Device")).first


def hovered_points(page: Page) -> Iterator[None]:
    """Moves the pointer over the map, and yields at each point."""
    box = map_of(page).bounding_box()
    assert box is not None
    for y in range(2, int(box["height"]), 4):
        for x in range(2, int(box["width"]), 6):
            page.mouse.move(box["x"] + x, box["y"] + y)
            yield


def test_blocks_appear_by_request(person: Person, services: Services, router: Router) -> None:
    page = person.open("live")
    expect(map_of(page)).to_have_accessible_name(re.compile(r" 0 used"))
    with services.load(router, num_requests=2):
        expect(requests_of(page)).to_have_count(2)
        expect(map_of(page)).to_have_accessible_name(re.compile(r" [1-9]\d* used"))
        expect(requests_of(page).first).to_contain_text("running")
        words = r"block \d+: used · tokens \d+ to \d+ · request \d+: \d+ block"
        told = page.get_by_text(re.compile(words))
        assert any(told.count() for _ in hovered_points(page))
        page.mouse.move(0, 0)
        expect(told).to_have_count(0)
    expect(requests_of(page)).to_have_count(0)
    expect(map_of(page)).to_have_accessible_name(re.compile(r" 0 used"))


def test_sessions_tell_what_their_turns_found(person: Person, router: Router) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is known? " * 20}],
        "prompt_cache_key": "a conversation",
    }
    for _ in range(2):
        httpx2.post(f"{url_of(router)}v1/chat/completions", json=body).raise_for_status()
    page = person.open("live")
    row = page.get_by_role("region", name="Sessions").locator("tbody").get_by_role("row").first
    expect(row).to_contain_text(re.compile(r"^[0-9a-f]{8}2\d+.*%device [\d,]+"))
    row.get_by_role("link").click()
    expect(page.get_by_text(re.compile("Prompt .* tokens"))).to_be_visible()


def test_the_last_minute_can_be_paused_and_moved_over(
    person: Person, services: Services, router: Router
) -> None:
    page = person.open("live")
    expect(map_of(page)).to_have_accessible_name(re.compile(r" 0 used"))
    moment = page.get_by_role("slider", name="Moment")
    with services.load(router):
        row = requests_of(page).first
        expect(row).to_contain_text("running")
        page.get_by_role("button", name="Pause").click()
        frozen = row.inner_text()
        later = services.num_drawn() + 500
        wait_until(lambda: services.num_drawn() > later)
        assert row.inner_text() == frozen
        moment.press("Home")
        expect(requests_of(page)).to_have_count(0)
        moment.press("End")
        expect(row).to_contain_text("running")
        page.get_by_role("button", name="Go on").click()
        expect(row).not_to_have_text(frozen)


def test_a_paused_view_takes_another_theme(person: Person) -> None:
    page = person.open("live")
    expect(map_of(page)).to_have_accessible_name(re.compile(r" 0 used"))
    page.get_by_role("button", name="Pause").click()

    def drawn() -> str:
        return map_of(page).evaluate("canvas => canvas.toDataURL()")

    before = drawn()
    page.get_by_role("combobox", name="Theme").select_option("dark")
    wait_until(lambda: drawn() != before)


def test_a_worker_joins_drains_and_leaves(
    person: Person, services: Services, router: Router
) -> None:
    page = person.open("live")
    workers = page.get_by_role("region", name=re.compile("^Worker"))
    expect(workers).to_have_count(1)
    changes = page.get_by_role("list", name="What has changed")
    with services.worker() as worker:
        address = worker.server.address
        expect(page.get_by_role("region", name=f"Worker {address}")).to_be_visible()
        expect(changes).to_contain_text(f"{address} has joined")
        services.portal.call(partial(worker.registration.drain, timeout_s=EVENT_S))
        expect(page.get_by_role("region", name=f"Worker {address}")).to_have_count(0)
        expect(changes).to_contain_text(f"{address} has left")
    expect(workers).to_have_count(1)


def test_tabs_share_a_stream_which_rests_while_they_are_hidden(
    browser: Browser, services: Services
) -> None:
    with services.router() as router, watched(browser, url_of(router)) as person:
        pages = [person.open("live"), person.context.new_page(), person.context.new_page()]
        for page in pages:
            page.goto(f"{person.url}#/live")
            expect(map_of(page)).to_be_visible()
        assert num_watchers(router) == 1
        with services.load(router):
            for page in pages:
                expect(requests_of(page)).to_have_count(1)
            pages[0].close()
            wait_until(lambda: num_watchers(router) == 1)
            row = requests_of(pages[1]).first
            expect(row).not_to_have_text(row.inner_text())
        for page in pages[1:]:
            page.evaluate(HIDE, True)
        wait_until(lambda: num_watchers(router) == 0)
        pages[1].evaluate(HIDE, False)
        wait_until(lambda: num_watchers(router) == 1)
        pages[1].goto(f"{person.url}#/chat")
        wait_until(lambda: num_watchers(router) == 0)


HIDE = """
(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""


def test_a_router_that_comes_back_is_watched_again(browser: Browser, services: Services) -> None:
    port = free_port()
    with ExitStack() as running:
        router = running.enter_context(services.router(http_port=port))
        with watched(browser, url_of(router)) as person:
            page = person.open("live")
            expect(map_of(page)).to_be_visible()
            running.close()
            status = page.get_by_role("main").get_by_role("status")
            expect(status).to_contain_text(re.compile("does not answer|broke off|shutting down"))
            with services.router(http_port=port) as again:
                wait_until(lambda: num_watchers(again) == 1)
                expect(status).not_to_contain_text("does not answer")
                expect(map_of(page)).to_be_visible()
            person.allows("ERR_|503")

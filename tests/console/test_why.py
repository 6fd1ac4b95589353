"""What happened to a request, as an operator looks it up."""

import json
import re
from pathlib import Path

import httpx2
from playwright.sync_api import expect

from signalbox_router.main import Router
from tests.console.chat import ask as say
from tests.console.person import Person
from tests.console.stack import Services, url_of
from tests.console.test_live import requests_of

QUESTION = {"messages": [{"role": "user", "content": "Why <img src=x onerror=alert(1)>?"}]}


def ask(router: Router, **fields: str) -> str:
    """Has a request answered; returns its id."""
    answer = httpx2.post(f"{url_of(router)}v1/chat/completions", json={**QUESTION, **fields})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_a_request_is_found_by_the_beginning_of_its_id(person: Person, router: Router) -> None:
    request_id = ask(router)
    page = person.open("why")
    field = page.get_by_role("textbox", name="Request")
    field.fill(request_id[:-4])
    field.press("Enter")
    expect(page.get_by_role("heading", name=request_id)).to_be_visible()
    expect(page.get_by_text(re.compile(r"^Prompt \d+ tokens"))).to_be_visible()
    for lane in ("queue", "prefill", "decode"):
        expect(page.get_by_role("img", name=re.compile(f"^{lane}: "))).to_be_visible()
    names = page.get_by_role("table").locator("tbody td:nth-child(2)").all_inner_texts()
    assert names == ["queued", "scheduled", "prefill", "first token", "ended"]
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save for Perfetto").click()
    events = json.loads(saving.value.path().read_text())["traceEvents"]
    assert {"queue", "prefill", "decode"} <= {one["name"] for one in events if one["ph"] == "X"}


def test_a_request_that_runs_is_followed_to_its_end(
    person: Person, services: Services, router: Router
) -> None:
    page = person.open("why")
    page.get_by_role("main").get_by_role("link", name="Live").click()
    with services.load(router):
        requests_of(page).first.get_by_role("link").click()
        expect(page).to_have_title(re.compile("Why"))
        expect(page.get_by_text("running", exact=True)).to_be_visible()
        expect(page.get_by_role("main")).to_contain_text(re.compile("first token", re.IGNORECASE))
    expect(page.get_by_text("ended", exact=True).first).to_be_visible()


def test_an_id_is_shown_as_text(person: Person, router: Router) -> None:
    request_id = ask(router, request_id="<img/src=x>%2F@#")
    page = person.open("why")
    page.get_by_role("textbox", name="Request").fill(request_id)
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("heading", name=request_id)).to_be_visible()
    assert not page.get_by_role("main").locator("img").count()


def test_an_unknown_request_is_told_in_words(person: Person) -> None:
    page = person.open("why/nothing")
    expect(page.get_by_role("alert")).to_contain_text("No scheduler knows this request")
    person.allows("404")


def test_an_answer_leads_to_its_history(person: Person, tmp_path: Path) -> None:
    page = person.open()
    say(page, "Why so late").get_by_role("link", name="Why").click()
    main = page.get_by_role("main")
    for event in ("queued", "first token", "ended"):
        expect(main).to_contain_text(re.compile(event, re.IGNORECASE))
    with page.expect_download() as saved:
        page.get_by_role("button", name=re.compile("Perfetto")).click()
    path = tmp_path / "trace.json"
    saved.value.save_as(path)
    events = json.loads(path.read_text())["traceEvents"]
    slices = [one for one in events if one["ph"] == "X"]
    assert slices
    assert all(one["ts"] >= 0 and one["dur"] >= 0 for one in slices)


def test_an_id_is_asked_for(person: Person) -> None:
    page = person.open("why")
    page.get_by_label("Request").fill("no-such-request")
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("main")).to_contain_text("No scheduler knows this request")
    person.allows("404")

"""The page at /docs, whose policy lets it run its own files alone; a violation fails its test."""

from playwright.sync_api import expect

from tests.console.person import Person


def test_an_example_is_tried_on_the_page(person: Person) -> None:
    page = person.page
    page.goto(f"{person.url}docs")
    chat = page.locator(".opblock").filter(has_text="/v1/chat/completions")
    chat.locator(".opblock-summary-control").click()
    expect(chat).to_contain_text("Needs an API key, if the server asks for keys.")
    chat.get_by_role("button", name="Try it out").click()
    chat.get_by_role("button", name="Execute").click()
    expect(chat.locator(".live-responses-table")).to_contain_text("chat.completion")

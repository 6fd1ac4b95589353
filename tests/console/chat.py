"""What a person does in the chat."""

import json
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.console.stack import MODEL


def box_of(page: Page) -> Locator:
    """Returns the box in which a message is written."""
    return page.get_by_role("textbox", name="Message")


def send(page: Page, text: str) -> None:
    """Sends a message, once the page knows the model that it is for."""
    expect(page.get_by_role("combobox", name="Model")).to_be_enabled()
    box_of(page).fill(text)
    box_of(page).press("Enter")
    expect(box_of(page)).to_have_value("")


def answers(page: Page) -> Locator:
    """Returns the model's messages."""
    return page.get_by_role("article", name=MODEL)


def ask(page: Page, question: str) -> Locator:
    """Sends a message; returns its answer once it is whole."""
    before = answers(page).count()
    send(page, question)
    message = answers(page).nth(before)
    expect(message.get_by_role("button", name="Regenerate")).to_be_visible()
    return message


def conversations(page: Page) -> Locator:
    """Returns the list of conversations."""
    return page.get_by_role("navigation", name="Conversations")


def open_settings(page: Page) -> None:
    """Shows what requests ask for beside their messages."""
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("complementary", name="Settings")).to_be_visible()


def sent(page: Page, question: str) -> dict[str, Any]:
    """Asks; returns the request as the browser sends it."""
    with page.expect_request("**/Chat") as asked:
        ask(page, question)
    body = asked.value.post_data_buffer
    assert body is not None
    return dict(json.loads(body[5:]))

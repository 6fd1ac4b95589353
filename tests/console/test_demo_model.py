"""A real model in the chat, on this machine's processor."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from signalbox.stack.demo import QUESTION
from tests.console.chat import open_settings, send
from tests.console.person import watched
from tests.signalbox.stacks import serve
from tests.transformers_demo import DEMO


@pytest.mark.skipif(not DEMO.exists(), reason="needs the demo model (make model)")
def test_the_demo_model_answers(browser: Browser, tmp_path: Path) -> None:
    with (
        serve(tmp_path / "log", str(DEMO), "--kv-cache-memory", "0.1") as stack,
        watched(browser, stack.http_url().removesuffix("v1")) as person,
    ):
        page = person.open()
        open_settings(page)
        page.get_by_label("temperature").fill("0")
        send(page, QUESTION)
        answer = page.get_by_role("article").last
        expect(answer).to_contain_text("The capital of South Korea is Seoul.")
        expect(answer).to_contain_text("9 tokens")
        answer.get_by_role("link", name="Why").click()
        expect(page.get_by_role("main")).to_contain_text("first token")

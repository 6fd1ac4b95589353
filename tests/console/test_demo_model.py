"""A real model in the chat, on this machine's processor."""

import os
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from signalbox.stack.demo import QUESTION
from tests.console.chat import open_settings, send
from tests.console.person import watched
from tests.signalbox.stacks import serve
from tests.test_imports import ROOT

DEMO = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
OUR_PATH = {"PYTHONPATH": os.pathsep.join(sys.path)}
"""The environment of playwright does not have our packages."""


@pytest.mark.skipif(not DEMO.exists(), reason="needs the demo model (make model)")
def test_the_demo_model_answers(browser: Browser, tmp_path: Path) -> None:
    with (
        serve(tmp_path / "log", str(DEMO), "--kv-cache-memory", "0.1", variables=OUR_PATH) as stack,
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

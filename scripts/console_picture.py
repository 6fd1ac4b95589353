"""Makes the README's picture of the console: the Live view of a router that answers some requests.

    python -m scripts.console_picture http://127.0.0.1:8000/ docs/console.png

The picture in the repository is of `signalbox serve --simulate --simulated-step-ms 20
--simulated-gpu-blocks 500 --simulated-cpu-blocks 120`, stored in 256 colours. Needs playwright and
Debian's Chromium, as `make test-console` does.
"""

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from playwright.sync_api import expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"
SIZE = {"width": 1280, "height": 800}
NUM_REQUESTS = 48
NUM_CLIENTS = 8
QUESTION = "Tell me about the number {number}, and about each of its divisors. " * 4
TIMEOUT_MS = 120_000


def ask(url: str, number: int) -> None:
    """Asks for a long answer, and waits for its end."""
    message = {"role": "user", "content": QUESTION.format(number=number)}
    body = {"messages": [message], "max_tokens": 64 + 8 * number, "ignore_eos": True}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(
        f"{url}v1/chat/completions", json.dumps(body).encode(), headers
    )
    urllib.request.urlopen(request).read()


def main(url: str, file: str) -> None:
    with sync_playwright() as playwright, ThreadPoolExecutor(NUM_CLIENTS) as clients:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.set_default_timeout(TIMEOUT_MS)
        expect.set_options(timeout=TIMEOUT_MS)
        page.goto(f"{url}#/live")
        expect(page.get_by_role("region", name="Requests")).to_be_visible()
        asked = [clients.submit(ask, url, number) for number in range(NUM_REQUESTS)]
        asked[-NUM_CLIENTS].result()  # the last ones run
        page.screenshot(path=file)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""nginx as docs/how_to/secure.md configures it passes each event on before the next is drawn."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.docs.blocks import ROOT, blocks
from tests.router.apis.openai.clients import HI, MODEL, make_http
from tests.router.fakes import EOS, bytewise_ids, finished, step, token
from tests.waiting import EVENT_S, eventually, wait_until

PAGE = ROOT / "docs" / "how_to" / "secure.md"
NAME = "llm.example"
TEXT = "A stream."
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 64},
}


@pytest.mark.parametrize("path", STREAMS)
async def test_each_event_arrives_before_the_next_is_drawn(path: str, tmp_path: Path) -> None:
    async with make_http(allowed_hosts=NAME) as http:
        scheduler = http.stack.scheduler
        scheduler.script = lambda add: ()
        with nginx(tmp_path, upstream=http.raw.base_url.netloc.decode()) as socket:
            said: list[str] = []
            body = {"model": MODEL, "stream": True, **STREAMS[path]}
            reading = asyncio.create_task(_read(socket, path, body, into=said))
            handle = (await http.stack.added()).handle
            for number, token_id in enumerate(bytewise_ids(TEXT), start=1):
                scheduler.send(step((handle, 0, [token_id])))
                await eventually(lambda wanted=number: reading.done() or len(said) == wanted)  # type: ignore[misc]
                assert "".join(said) == TEXT[:number]
            scheduler.send(step((handle, 0, [token(EOS)]), **finished(handle)))
            await reading
        assert "".join(said) == TEXT


async def _read(socket: Path, path: str, body: dict[str, Any], *, into: list[str]) -> None:
    """Keeps the text of each event as it comes."""
    transport = httpx2.AsyncHTTPTransport(uds=str(socket))
    async with (
        httpx2.AsyncClient(
            transport=transport, base_url=f"http://{NAME}", timeout=EVENT_S
        ) as client,
        client.stream("POST", path, json=body) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                into += filter(None, [_text(json.loads(line.removeprefix("data: ")))])


def _text(event: dict[str, Any]) -> str:
    """Returns the text that an event of any of the APIs adds."""
    for choice in event.get("choices", ()):
        return str(choice.get("text") or choice.get("delta", {}).get("content") or "")
    delta = event.get("delta", "")
    return str(delta if isinstance(delta, str) else delta.get("text", ""))


@contextmanager
def nginx(folder: Path, *, upstream: str) -> Iterator[Path]:
    """Runs nginx with the page's configuration; yields the socket that it listens on."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    socket = folder / "socket"
    (site,) = (block.text for block in blocks(PAGE) if "proxy_pass" in block.text)
    for written, here in (
        ("listen 443 ssl", f"listen unix:{socket}"),
        ("127.0.0.1:8000", upstream),
    ):
        assert written in site
        site = site.replace(written, here)
    site = "\n".join(line for line in site.splitlines() if "ssl_certificate" not in line)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "\n".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(f"""
daemon off;
master_process off;
pid {folder / "pid"};
events {{}}
http {{
access_log off;
{folders}
{site}
}}
""")
    errors = ("-e", str(folder / "errors"))
    process = subprocess.Popen([program, *errors, "-c", str(config)], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: socket.exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        yield socket
    finally:
        process.terminate()
        process.communicate()

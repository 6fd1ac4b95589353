"""One client's costly templates and grammars do not hold up those of another."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from signalbox_router.limits import sandbox_process
from signalbox_router.params import structured_output_check
from signalbox_router.prompt.chat import chat_templates
from signalbox_router.prompt.chat.chat_template import ChatTemplate
from signalbox_router.prompt.chat.template_renderer import TemplateFailed
from signalbox_rpc.lifetime.limited_program import ProgramLimits
from tests.router.apis.openai.clients import HI, Http, make_http
from tests.router.limits.test_api_keys import entry, write_keys
from tests.waiting import EVENT_S, eventually

BOMB = "bomb"
NUM_BOMBS = 40


def with_template(template: str) -> dict[str, Any]:
    return {"chat_template": "{{ '" + template + "' }}"}


def with_grammar(name: str) -> dict[str, Any]:
    return {"structured_outputs": {"regex": name}}


class Processes:
    """Stands in for what starts a process: a bomb's runs until the test is over, others at once."""

    def __init__(self) -> None:
        self.num_bombs = 0
        self.over = asyncio.Event()
        self.threads_over = threading.Event()

    async def run(self, module: str, job: object, limits: ProgramLimits) -> dict[str, Any]:
        if BOMB in json.dumps(job):
            self.num_bombs += 1
            await self.over.wait()
            return {"error": sandbox_process.OUT_OF_TIME}
        return await sandbox_process.run_limited(module, job, limits)

    def load(self, source: str, **options: Any) -> ChatTemplate:
        if BOMB in source:
            self.num_bombs += 1
            self.threads_over.wait()
            raise TemplateFailed("it takes more than 2 s")
        return ChatTemplate(source, **options)

    def end(self) -> None:
        self.over.set()
        self.threads_over.set()


@pytest.fixture
async def processes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Processes]:
    fake = Processes()
    monkeypatch.setattr(structured_output_check, "run_limited", fake.run)
    monkeypatch.setattr(chat_templates, "ChatTemplate", fake.load)
    yield fake


@asynccontextmanager
async def bombed(
    http: Http, processes: Processes, fields: Callable[[str], dict[str, Any]], **client: Any
) -> AsyncIterator[None]:
    """Sends bombs, each its own, and runs the block while they hold all they can get."""
    root = str(http.raw.base_url)
    async with httpx2.AsyncClient(base_url=root, timeout=EVENT_S, **client) as bomber:
        bodies = [{"messages": HI, **fields(f"{BOMB}{i}")} for i in range(NUM_BOMBS)]
        asked = [
            asyncio.create_task(bomber.post("/v1/chat/completions", json=body)) for body in bodies
        ]
        try:
            await eventually(lambda: http.stack.router.live.num_live == NUM_BOMBS)
            await eventually(lambda: processes.num_bombs > 0)
            yield
        finally:
            processes.end()
            answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {400}


def key(name: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {name}"}}


@pytest.mark.parametrize("fields", [with_template, with_grammar])
@pytest.mark.parametrize("has_keys", [True, False])
async def test_a_clients_bombs_leave_a_process_for_another_client(
    fields: Callable[[str], dict[str, Any]],
    has_keys: bool,
    processes: Processes,
    tmp_path: Path,
) -> None:
    keys = write_keys(tmp_path / "keys", *({**entry(one), "name": one} for one in ("red", "blue")))
    bomber: dict[str, Any] = key("red")
    honest: dict[str, Any] = key("blue")
    if not has_keys:  # another address of this machine
        bomber = {"transport": httpx2.AsyncHTTPTransport(local_address="127.0.0.2")}
        honest = {}
    async with make_http(api_keys=keys if has_keys else None) as http:
        body = {"messages": HI, **fields("Hi")}
        async with bombed(http, processes, fields, **bomber):
            answer = await http.raw.post("/v1/chat/completions", json=body, **honest)
            assert answer.status_code == 200, answer.text
            assert processes.num_bombs == chat_templates.MAX_PROCESSES - 1

"""The examples in other languages, and clients that know only reflection, against a router."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import grpc_requests
import pytest

from signalbox.version import VERSION
from tests.clients.routers import ANSWER, MAX_TOKENS, QUESTION, running_router
from tests.router.fakes import MODEL_NAME
from tests.waiting import EVENT_S, eventually

CLIENTS = Path(__file__).parents[2] / "clients"
BUF = Path(sys.executable).with_name("buf")
SERVICE = "signalbox.inference.v1.InferenceService"
RUN_S = EVENT_S
EXPECTED = [
    f"answer: {ANSWER}",
    "cancelled after: The",
    "late: DEADLINE_EXCEEDED",
    "refused: INVALID_ARGUMENT sampling_params.temperature: allowed: [0, 2]; given: 9.0",
]


async def run(*command: str | Path, cwd: Path = CLIENTS) -> str:
    """Runs a client beside the router's event loop, and returns what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), RUN_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return out.decode()


def command_of(language: str) -> list[str | Path]:
    """Returns how an example is run; skips what was not built here.

    What was built from an older contract must do: so do clients elsewhere.
    """
    folder = CLIENTS / language
    built = folder / {"node": "node_modules", "typescript": "dist"}.get(language, "build/chat")
    script = {"node": "chat.js", "typescript": "example.mjs"}.get(language)
    if not built.exists() or (script and shutil.which("node") is None):
        pytest.skip(f"clients/{language} is not built here: make clients, see clients/README.md")
    return ["node", folder / script] if script else [built]


@pytest.mark.parametrize("language", ["node", "go", "cpp", "typescript"])
async def test_an_example_chats_cancels_is_late_and_reads_an_error(language: str) -> None:
    command = command_of(language)
    async with running_router(http_port=0) as stack:
        assert stack.router.http is not None
        is_web = language == "typescript"
        address = f"http://{stack.router.http.address}" if is_web else stack.address
        lines = (await run(*command, address)).splitlines()
        expected = [line.replace("DEADLINE_EXCEEDED", "DeadlineExceeded") for line in EXPECTED]
        expected = [line.replace("INVALID_ARGUMENT", "InvalidArgument") for line in expected]
        assert lines == (expected if language in ("go", "typescript") else EXPECTED)
        await eventually(lambda: bool(stack.scheduler.aborted))


def test_the_package_for_browsers_has_our_version() -> None:
    package = json.loads((CLIENTS / "typescript" / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == VERSION.partition(".dev")[0]


def chat_request(max_tokens: int) -> dict[str, Any]:
    message = {"role": "CHAT_ROLE_USER", "content": [{"text": QUESTION}]}
    return {"messages": [message], "sampling_params": {"max_tokens": max_tokens}}


async def told_by_buf(address: str, *options: str | Path) -> str:
    """Returns the text of a chat that `buf curl` reads."""
    data = ("--data", json.dumps(chat_request(MAX_TOKENS)))
    out = await run(BUF, "curl", *options, *data, f"http://{address}/{SERVICE}/Chat")
    decoder, texts, position = json.JSONDecoder(), list[str](), 0
    while position < len(out.rstrip()):
        message, position = decoder.raw_decode(out, position)
        position += 1  # the line's end
        texts += [output.get("text", "") for output in message.get("outputs", [])]
    return "".join(texts)


@pytest.mark.skipif(not BUF.exists(), reason="needs buf (make install)")
@pytest.mark.parametrize("reflection", [(), ("grpc-v1",), ("grpc-v1alpha",)])
async def test_buf_curl_needs_nothing_but_reflection(reflection: tuple[str, ...]) -> None:
    options = ["--protocol", "grpc", "--http2-prior-knowledge"]
    options += [f"--reflect-protocol={protocol}" for protocol in reflection]
    async with running_router() as stack:
        assert await told_by_buf(stack.address, *options) == ANSWER


@pytest.mark.skipif(not BUF.exists(), reason="needs buf (make install)")
@pytest.mark.parametrize("protocol", ["connect", "grpcweb"])
async def test_buf_curl_calls_the_http_port(protocol: str) -> None:
    protos = CLIENTS.parent / "protos"
    async with running_router(http_port=0) as stack:
        assert stack.router.http is not None
        options = ("--protocol", protocol, "--schema", protos)
        assert await told_by_buf(stack.router.http.address, *options) == ANSWER


async def test_grpc_requests_needs_nothing_but_reflection() -> None:
    def use(address: str) -> tuple[set[str], Any, list[Any]]:
        client = grpc_requests.Client.get_by_endpoint(address)
        model = client.request(SERVICE, "GetModel", {})
        answers = list(client.request(SERVICE, "Chat", chat_request(MAX_TOKENS)))
        return set(client.service_names), model, answers

    async with running_router() as stack:
        services, model, answers = await asyncio.to_thread(use, stack.address)
        assert {SERVICE, "vllm.grpc.engine.VllmEngine", "grpc.health.v1.Health"} <= services
        assert model["name"] == MODEL_NAME
        texts = [one.get("text", "") for answer in answers for one in answer.get("outputs", [])]
        assert "".join(texts) == ANSWER

"""Requests of a batch against servers that refuse, break off, answer later, or are gone."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from signalbox.client.connection import Connection
from signalbox.commands.run_batch.answer_file import AnswerFile
from signalbox.commands.run_batch.batch_client import MOST_ATTEMPTS, BatchClient, Progress
from signalbox.commands.run_batch.batch_file import find_requests

USAGE = {"prompt_tokens": 3, "completion_tokens": 5}
BREAK_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"


def reply(status: str, content: Any, *headers: str) -> bytes:
    body = json.dumps(content).encode()
    head = "\r\n".join([f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""])
    return head.encode() + body


ANSWER = reply("200 OK", {"usage": USAGE}, "X-Request-Id: r1")
BUSY = reply("429 Too Many Requests", {}, "Retry-After: 0")
REFUSED = reply("400 Bad Request", {"error": {"message": "no"}})
HANG = b"hang"
"""Is never answered."""


class Server:
    """Answers requests by their prompt: what there is of a prompt, in order, then ANSWER."""

    def __init__(self, **replies: list[bytes]) -> None:
        self.replies = replies
        self.paths: list[str] = []
        self.most_at_once = 0
        self.hangs, self.is_left = asyncio.Event(), asyncio.Event()
        self._num_open = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_open += 1
        self.most_at_once = max(self.most_at_once, self._num_open)
        path = (await reader.readline()).split()[1].decode()
        length = 0
        while header := (await reader.readline()).strip().lower():
            if header.startswith(b"content-length:"):
                length = int(header.partition(b":")[2])
        answer = reply("404 Not Found", {})  # of /v1/models
        if length:
            self.paths.append(path)
            replies = self.replies.get(json.loads(await reader.readexactly(length))["prompt"])
            answer = replies.pop(0) if replies else ANSWER
        if answer == HANG:
            self.hangs.set()
            await reader.read()  # until the client leaves
            self.is_left.set()
        writer.write(answer)
        self._num_open -= 1
        writer.close()


async def answer_all(
    folder: Path,
    url: str,
    *prompts: str,
    concurrency: int = 4,
    timeout_s: float = 3600.0,
    check_s: float = 3600.0,
) -> tuple[dict[str, Any], Progress]:
    """Returns the lines by id, which is the prompt."""
    batch, output = folder / "batch", folder / "answers"
    lines = [
        {"custom_id": one, "method": "POST", "url": "/v1/completions", "body": {"prompt": one}}
        for one in prompts
    ]
    batch.write_text("\n".join(map(json.dumps, lines)))
    client = BatchClient(url, Connection(api_key="secret"), timeout_s=timeout_s)
    client.first_wait_s, client.check_s = 0.0, check_s
    requests = find_requests(batch)
    with AnswerFile(output, {one.custom_id: one.answer_id for one in requests}) as answers:
        await client.answer_all(batch, requests, answers, concurrency=concurrency)
    found = [json.loads(line) for line in output.read_text().splitlines()]
    return {one["custom_id"]: one for one in found}, client.progress


async def test_answers_and_refusals_are_written_as_they_are(tmp_path: Path) -> None:
    server = Server(b=[REFUSED], c=[reply("500 Oh", "no object")])
    async with server.running() as url:
        lines, progress = await answer_all(tmp_path, f"{url}/v1/", "a", "b", "c")
    body = {"usage": USAGE}
    assert lines["a"]["response"] == {"status_code": 200, "request_id": "r1", "body": body}
    assert lines["b"]["response"]["status_code"] == 400
    assert lines["b"]["response"]["body"] == {"error": {"message": "no"}}
    assert lines["c"]["response"]["body"] == {"error": {"message": '"no object"'}}
    assert all(line["error"] is None for line in lines.values())
    assert progress == Progress(1, 2, 3, 5)
    assert server.paths == ["/v1/completions"] * 3


async def test_what_may_be_answered_later_is_sent_again(tmp_path: Path) -> None:
    final = reply("429 Too Many Requests", {}, "x-should-retry: false")
    server = Server(a=[BUSY, BREAK_OFF, b"", BUSY], b=[BUSY] * MOST_ATTEMPTS, c=[final])
    async with server.running() as url:
        lines, progress = await answer_all(tmp_path, url, "a", "b", "c")
    assert {key: one["response"]["status_code"] for key, one in lines.items()} == {
        "a": 200,
        "b": 429,
        "c": 429,
    }
    assert progress.num_failed == 2
    assert len(server.paths) == 5 + MOST_ATTEMPTS + 1


@pytest.mark.parametrize(("end", "message"), [(BREAK_OFF, "of 100"), (b"", "without an answer")])
async def test_a_request_that_always_breaks_off_fails_alone(
    tmp_path: Path, end: bytes, message: str
) -> None:
    server = Server(b=[end] * MOST_ATTEMPTS)
    async with server.running() as url:
        lines, progress = await answer_all(tmp_path, url, "a", "b", "c", concurrency=1)
    assert lines["b"]["response"] is None
    assert lines["b"]["error"]["code"] == "no_answer"
    assert message in lines["b"]["error"]["message"]
    assert progress.num_answered == 2


async def test_a_request_that_is_never_answered_fails_alone(tmp_path: Path) -> None:
    server = Server(a=[HANG])
    async with server.running() as url:
        lines, _ = await answer_all(tmp_path, url, "a", timeout_s=0.01)
        assert lines["a"]["error"] == {"code": "no_answer", "message": "no answer within 0.01 s"}
        assert len(server.paths) <= 1


async def test_a_silent_server_ends_the_batch(tmp_path: Path) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(RuntimeError, match="nothing answers"):
            await answer_all(tmp_path, url, "a", "b", timeout_s=0.01, check_s=0.01)
    assert (tmp_path / "answers").read_bytes() == b""


async def test_a_server_that_is_gone_ends_the_batch_and_leaves_no_failures(tmp_path: Path) -> None:
    async with Server().running() as url:
        pass
    with pytest.raises(RuntimeError, match=f"nothing answers at {url}: .*run the same command"):
        await answer_all(tmp_path, url, "a", "b")
    assert (tmp_path / "answers").read_bytes() == b""


async def test_an_interruption_leaves_the_answers_so_far_and_the_server(tmp_path: Path) -> None:
    server = Server(c=[HANG])
    async with server.running() as url:
        batch = asyncio.create_task(answer_all(tmp_path, url, "a", "b", "c", "d", concurrency=1))
        await server.hangs.wait()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        await server.is_left.wait()
        ids = {one.custom_id: one.answer_id for one in find_requests(tmp_path / "batch")}
        with AnswerFile(tmp_path / "answers", ids) as answers:
            assert answers.resume() == {"a", "b"}


async def test_no_more_run_at_once_than_allowed(tmp_path: Path) -> None:
    server = Server()
    async with server.running() as url:
        lines, _ = await answer_all(tmp_path, url, *map(str, range(20)), concurrency=3)
    assert len(lines) == 20
    assert 1 <= server.most_at_once <= 3

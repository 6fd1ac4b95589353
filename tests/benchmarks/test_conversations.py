"""The benchmark of conversations: what each server is asked, and what is counted."""

import asyncio
import json
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.conversations import Script, converse, disk_bytes, header, main, row
from benchmarks.harness.closed_loop import WrongTokenCount
from benchmarks.kv_disk import drop_pages
from benchmarks.peers.conversing import (
    Answer,
    LlamaConversing,
    Room,
    SignalboxConversing,
    VllmConversing,
)
from benchmarks.peers.process import HOST
from tests.gpu_worker.tiny_models import make_llama

SCRIPT = Script(openings=[[1] * 8, [2] * 8], texts=[[[3] * 2, [4] * 2]], answer_tokens=2)


def room_in(folder: Path, *, memory_bytes: int = 1 << 30) -> Room:
    return Room(
        memory_bytes=memory_bytes,
        token_bytes=1 << 20,
        max_model_len=128,
        num_threads=2,
        log_folder=folder,
    )


class Echo:
    """Answers with the number of the conversation; finds all but the last text in its cache."""

    name = "echo"

    def __init__(self, files: Path | None = None, *, num_tokens: int = 2) -> None:
        self.files = files
        self.prompts: list[list[int]] = []
        self._num_tokens = num_tokens

    async def start(self) -> None: ...

    def stop(self) -> None: ...

    async def answer(self, conversation: int, token_ids: list[int], *, max_tokens: int) -> Answer:
        self.prompts.append(list(token_ids))
        num_cached = len(token_ids) - 2 if len(self.prompts) > 2 else 0
        return Answer([10 + conversation] * self._num_tokens, 0.1, 0.5, num_cached)


async def test_a_turn_gives_the_history_with_the_answers() -> None:
    server = Echo()
    turns = await converse(server, SCRIPT)
    assert server.prompts == [
        [1] * 8,
        [2] * 8,
        [1] * 8 + [10] * 2 + [3] * 2,
        [2] * 8 + [11] * 2 + [4] * 2,
    ]
    assert max(map(len, server.prompts)) + SCRIPT.answer_tokens == SCRIPT.max_model_len
    assert [length for turn in turns for length, _ in turn] == [8, 8, 12, 12]


async def test_a_row_counts_the_turns_after_the_first(tmp_path: Path) -> None:
    (tmp_path / "kv").write_bytes(bytes(2_000_000))
    server = Echo(tmp_path)
    cells = row(server, await converse(server, SCRIPT)).strip("| ").split(" | ")
    assert cells == ["echo", "100", "100", "100", "2", "0.17", "2"]
    assert len(header(SCRIPT).split("\n")[0].strip("| ").split(" | ")) == len(cells)


async def test_an_answer_of_another_length_is_an_error() -> None:
    with pytest.raises(WrongTokenCount, match="3 tokens"):
        await converse(Echo(num_tokens=3), SCRIPT)


def test_all_servers_have_the_same_memory(tmp_path: Path) -> None:
    room = room_in(tmp_path, memory_bytes=1 << 30)
    ours = SignalboxConversing(tmp_path, room, flags=["--dtype", "bfloat16"], files=tmp_path)
    assert ours.extra_arguments[:4] == ("--kv-cache-memory", "0.5", "--swap-space", "0.5")
    vllm = VllmConversing(tmp_path, room)
    assert ("--kv-cache-memory-bytes", str(1 << 30)) == vllm.extra_arguments[:2]
    slots = LlamaConversing(tmp_path, room, files=tmp_path)
    assert slots.extra_arguments[:4] == ("--parallel", "7", "--ctx-size", str(7 * 129))
    assert slots.extra_arguments[-1] == "0"
    cache = LlamaConversing(tmp_path, room)
    assert cache.extra_arguments[:4] == ("--parallel", "1", "--ctx-size", "129")
    assert cache.extra_arguments[-2:] == ("--cache-ram", str(1024 - 129))


@asynccontextmanager
async def llama(asked: list[str]) -> AsyncIterator[int]:
    """A llama-server of which the answers are fixed; notes what it is asked, yields its port."""

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        asked.append(f"{head.split(' ')[1]} {body.get('filename', body.get('id_slot'))}")
        text = json.dumps({"tokens": [5, 6], "timings": {"cache_n": 7, "predicted_ms": 0.001}})
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + text.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_one, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_slot_is_restored_before_a_later_turn_and_saved_after_each(tmp_path: Path) -> None:
    server = LlamaConversing(
        tmp_path, room_in(tmp_path, memory_bytes=2 * 129 << 20), files=tmp_path
    )
    asked: list[str] = []
    async with llama(asked) as server.port:
        answers = [await server.answer(3, [1, 2], max_tokens=2) for _ in range(2)]
    assert asked == [
        "/completion 1",
        "/slots/1?action=save 3.slot",
        "/slots/1?action=restore 3.slot",
        "/completion 1",
        "/slots/1?action=save 3.slot",
    ]
    assert [answer.token_ids for answer in answers] == [[5, 6]] * 2
    assert all(0 < one.first_token_s < one.whole_s and one.num_cached == 7 for one in answers)


def test_pages_are_dropped_and_bytes_counted_while_files_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"KV" * 4096)
    (tmp_path / "deleted").symlink_to(tmp_path / "nothing")  # is listed and cannot be opened
    drop_pages(tmp_path)
    assert disk_bytes(tmp_path) == 8192


@pytest.mark.system
def test_ours_with_a_disk_answers_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    make_llama(tmp_path / "model")
    sizes = "--conversations 8 --share 0.5 --turns 3 --history 40 --text 8 --answer 20"
    flags = ["--flags", "--num-threads 1 --kv-cache-dtype bfloat16"]
    folder = ["--folder", str(tmp_path), "--threads", "1"]
    arguments = ["conversations", str(tmp_path / "model"), *shlex.split(sizes), *flags, *folder]
    monkeypatch.setattr("sys.argv", arguments)
    main()
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [line.split(" | ")[0] for line in rows] == ["| signalbox", "| signalbox, disk"]
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]

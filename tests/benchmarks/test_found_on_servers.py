"""Tokens that servers find of a hybrid: what is counted, what each has, and ours on its file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.found_on_servers import Ask, Room, found, llama, main
from benchmarks.found_prefixes import Turn
from benchmarks.peers.llama_server import LlamaServer
from benchmarks.peers.process import PeerUnavailable


@asynccontextmanager
async def all_found() -> AsyncIterator[Ask]:
    async def ask(turn: Turn) -> int:
        return len(turn.prompt)

    yield ask


async def test_tokens_of_counted_prompts_are_added() -> None:
    turns = [Turn([1] * 8, 1), Turn([2] * 16, 1, is_counted=False), Turn([3] * 32, 1)]
    assert await found(all_found(), [turns[:2], turns[2:]]) == 8 + 32


@pytest.mark.parametrize("has_prompt_cache, num_slots, cache_mib", [(False, 10, 0), (True, 3, 8)])
async def test_llama_server_has_all_blocks_in_slots_or_in_slots_and_its_cache(
    has_prompt_cache: bool,
    num_slots: int,
    cache_mib: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[LlamaServer]()

    async def start(server: LlamaServer) -> None:
        made.append(server)
        raise PeerUnavailable("not here")

    monkeypatch.setattr(LlamaServer, "start", start)
    room = Room(  # a slot takes 7 blocks for its tokens and 3 for its state
        model=tmp_path,
        block_bytes=1 << 17,
        state_blocks=3,
        num_blocks=100,
        longest=100,
        folder=tmp_path,
    )
    with pytest.raises(PeerUnavailable):
        async with llama(room, tmp_path, has_prompt_cache=has_prompt_cache):
            pass
    (server,) = made
    assert server._slots.count == num_slots
    assert server.extra_arguments[:2] == ("--cache-ram", str(cache_mib))


@pytest.mark.system
def test_ours_finds_what_is_named_and_a_peer_that_is_not_here_has_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path), "--shrink", "8", "--only", "prefixes of 3, room for all"]
    monkeypatch.setattr("sys.argv", ["found_on_servers", *arguments])
    main()
    *_, line = capsys.readouterr().out.splitlines()
    name, _, words, ours, *peers = line.strip("| ").split(" | ")
    assert (name, words, peers) == ("5 prefixes of 3", "all", ["–", "–"])
    assert 0.95 <= float(ours) <= 1

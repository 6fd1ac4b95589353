"""Conversations with more history than the KV pools hold: ours with and without a disk, and peers.

    python -m benchmarks.conversations MODEL [--peers DIR] [--only NAME ...]

MODEL is a folder with config.json; DIR has the peers and the same weights as each reads them, as
for `compare`. Conversations take turns: each gives its history and a new text, and takes an answer
of so many tokens, which joins the history. All servers have the same memory for KV, enough for a
part of all histories. The pages of files with KV are dropped before each turn, as if RAM had no
room for them either. Restoring and saving slots counts as time of llama-server's answer.
"""

import argparse
import asyncio
import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.harness.closed_loop import WrongTokenCount
from benchmarks.harness.prompts import random_prompts
from benchmarks.kv_disk import drop_pages
from benchmarks.peers.conversing import (
    Answer,
    Conversing,
    LlamaConversing,
    Room,
    SignalboxConversing,
    VllmConversing,
)
from benchmarks.peers.process import PeerUnavailable, exit_on_sigterm
from signalbox.bench.measurements import percentile_ms

_ELEMENT_BYTES = 2
FLAGS = "--dtype bfloat16 --quantization none --kv-cache-dtype bfloat16"
"""Ours in the form that the peers compute in, so that all have room for as many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the conversations say, and how long their answers are."""

    openings: Sequence[list[int]]
    """Text of the first turn of each."""
    texts: Sequence[Sequence[list[int]]]
    """Texts of each later turn, by conversation."""
    answer_tokens: int

    @property
    def max_model_len(self) -> int:
        own = sum(len(turn[0]) + self.answer_tokens for turn in self.texts)
        return len(self.openings[0]) + own + self.answer_tokens


def make_script(options: argparse.Namespace, *, vocab_size: int) -> Script:
    def of(num_tokens: int, seed: int) -> list[list[int]]:
        prompts = random_prompts(vocab_size=vocab_size, num_tokens=num_tokens, seed=seed)
        return list(islice(prompts, options.conversations))

    return Script(
        openings=of(options.history, 0),
        texts=[of(options.text, turn) for turn in range(1, options.turns)],
        answer_tokens=options.answer,
    )


async def converse(server: Conversing, script: Script) -> list[list[tuple[int, Answer]]]:
    """Returns the length of each prompt, and its answer, by turn and conversation."""
    histories = [list(opening) for opening in script.openings]
    turns = []
    for texts in (None, *script.texts):
        turn = []
        for number, history in enumerate(histories):
            history += texts[number] if texts else []
            if server.files:
                drop_pages(server.files)
            answer = await server.answer(number, history, max_tokens=script.answer_tokens)
            if len(answer.token_ids) != script.answer_tokens:
                raise WrongTokenCount(f"{len(answer.token_ids)} tokens came from {server.name}")
            turn.append((len(history), answer))
            history += answer.token_ids
        turns.append(turn)
    return turns


def header(script: Script) -> str:
    of_turns = [f"turn {number}" for number in range(2, len(script.texts) + 2)]
    cells = ("server", *of_turns, "p50", "p99", "all turns s", "computed", "MB on disk")
    return f"| {' | '.join(cells)} |\n{'|---' * len(cells)}|"


def row(server: Conversing, turns: Sequence[Sequence[tuple[int, Answer]]]) -> str:
    """Returns times to the first token in ms, and the share of tokens that was computed."""
    later = [one for turn in turns[1:] for one in turn]
    first_s = [answer.first_token_s for _, answer in later]
    of_turns = [percentile_ms([one.first_token_s for _, one in turn], 50) for turn in turns[1:]]
    num_tokens = sum(length for length, _ in later)
    computed = num_tokens - sum(answer.num_cached for _, answer in later)
    cells = (
        server.name,
        *(
            f"{ms:,.0f}"
            for ms in (*of_turns, percentile_ms(first_s, 50), percentile_ms(first_s, 99))
        ),
        f"{sum(answer.whole_s for turn in turns for _, answer in turn):.0f}",
        f"{computed / num_tokens:.2f}",
        f"{disk_bytes(server.files) / 1e6:,.0f}" if server.files else "",
    )
    return f"| {' | '.join(cells)} |"


def disk_bytes(folder: Path) -> int:
    num_bytes = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # a journal of an index that was deleted meanwhile
            num_bytes += 512 * path.stat().st_blocks
    return num_bytes


def servers(options: argparse.Namespace, room: Room, folder: Path) -> Iterator[Conversing]:
    """Yields those that are asked for; files with KV are in folders of `folder`."""
    flags = shlex.split(options.flags)
    ours = [
        SignalboxConversing(options.model, room, flags=flags),
        SignalboxConversing(options.model, room, flags=flags, files=_made(folder / "ours")),
    ]
    peers: list[Conversing] = []
    if options.peers is not None:
        peers = [
            VllmConversing(options.peers, room),
            LlamaConversing(options.peers, room),
            LlamaConversing(options.peers, room, files=_made(folder / "slots")),
        ]
    for server in (*ours, *peers):
        if not options.only or any(word in server.name for word in options.only):
            yield server


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


async def run(options: argparse.Namespace, folder: Path) -> None:
    config = json.loads((options.model / "config.json").read_text())
    script = make_script(options, vocab_size=config["vocab_size"])
    heads = config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token_bytes = 2 * _ELEMENT_BYTES * config["num_hidden_layers"] * heads * head_dim
    all_bytes = options.conversations * script.max_model_len * token_bytes
    room = Room(
        memory_bytes=int(options.share * all_bytes),
        token_bytes=token_bytes,
        max_model_len=script.max_model_len,
        num_threads=options.threads,
        log_folder=folder,
    )
    print(f"{room.memory_bytes / 1e6:.0f} MB for KV; all histories {all_bytes / 1e6:.0f} MB")
    print(header(script), flush=True)
    of_ours = list[list[list[int]]]()
    for server in servers(options, room, folder):
        try:
            await server.start()
            turns = await converse(server, script)
            print(row(server, turns), flush=True)
        except PeerUnavailable as why:
            print(f"| {server.name} | {why} |", flush=True)
            continue
        finally:
            server.stop()
        if isinstance(server, SignalboxConversing):
            of_ours.append([answer.token_ids for turn in turns for _, answer in turn])
    if any(answers != of_ours[0] for answers in of_ours):
        raise RuntimeError("the answers with a disk are not those without")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--peers", type=Path, metavar="DIR")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="or a part of it")
    parser.add_argument("--conversations", type=int, default=24)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--history", type=int, default=1280, help="tokens of the first text")
    parser.add_argument("--text", type=int, default=64, help="tokens of each later text")
    parser.add_argument("--answer", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--share", type=float, default=0.25, help="of all histories in memory")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--flags", default=FLAGS, help="of ours (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="on the disk for KV")
    return parser.parse_args(arguments)


def main() -> None:
    exit_on_sigterm()
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        asyncio.run(run(options, Path(folder)))


if __name__ == "__main__":
    main()

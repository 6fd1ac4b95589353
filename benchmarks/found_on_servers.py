"""Prompt tokens that servers find of a hybrid: ours and llama-server, on one file and one trace.

    python -m benchmarks.found_on_servers DIR [--shrink 2] [--only NAME ...] [--servers NAME ...]

DIR has llama.cpp, as for `compare`. The requests are those of `found_prefixes`, in the same order
and as token ids; the file, of Qwen3.5's kind with random weights, is made. Answers are the trace's
token, by a bias, so that all servers compute the same sequences. Ours is told the positions that a
router names of conversations, llama-server the token that begins a user's message, as its chat API
does. All have as much memory for K and V and for states; llama-server's checkpoints count where
they are in its prompt cache, and come on top where they are in slots.
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from benchmarks.found_prefixes import NUM_AT_ONCE, Turn, common_prefixes, rounds, traces
from benchmarks.harness.random_checkpoint import config_of, shapes_of
from benchmarks.harness.random_gguf import save_gguf
from benchmarks.peers.llama_server import LlamaServer, Slots
from benchmarks.peers.process import PeerUnavailable, exit_on_sigterm
from benchmarks.simulated_time.simulated_pool import BLOCK_SIZE, VOCAB_SIZE
from benchmarks.simulated_time.simulated_worker import TOKEN
from signalbox.bench.http_stream import post
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.local_stack import running
from signalbox.stack.model_needs import examine_model
from signalbox_contract import request, updates
from signalbox_contract.sampling_params import SamplingParams
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel

_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
"""Sizes with which a state takes about as many blocks as one of Qwen3.5 9B."""
_BIAS = 100.0
_DELIMITERS = [{"role": "user", "delimiter": "t"}]
"""The text of the token that begins a user's message."""
_CHECKPOINTS = ("--checkpoint-min-step", "0")
"""Keeps the checkpoints of earlier turns, which are given up by default."""
_MIB = 1 << 20

Ask: TypeAlias = Callable[[Turn], Awaitable[int]]
"""Puts a request, and returns how many tokens of the prompt were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What servers have for one trace."""

    model: Path
    block_bytes: int
    state_blocks: int
    num_blocks: int
    """Blocks for all that is kept, states included."""
    longest: int
    """Tokens of the longest sequence."""
    folder: Path


def _settings(model: Path, **settings: object) -> ServeSettings:
    own = {"model": str(model), "grpc_port": 0, "http": False, "log_level": "error"}
    cache = {"kv_cache_dtype": "bfloat16", "block_size": BLOCK_SIZE, "swap_space": 0}
    return load(ServeSettings, own | cache | settings)


@asynccontextmanager
async def signalbox(room: Room) -> AsyncIterator[Ask]:
    """Our stack, asked as its router asks the scheduler."""
    gib = (room.num_blocks + 1) * room.block_bytes / (1 << 30)
    settings = _settings(room.model, kv_cache_memory=gib, num_gpu_blocks_override=room.num_blocks)
    params = SamplingParams(temperature=0, logit_bias=((TOKEN, _BIAS),))
    handles = itertools.count(1)
    async with running(settings) as stack, open_channel(stack.addresses.scheduler) as channel:
        stub = pb_grpc.SchedulerServiceStub(channel)

        async def ask(turn: Turn) -> int:
            handle = next(handles)
            asked = request.Request(
                handle=handle,
                request_id=f"r{handle}",
                prompt_token_ids=turn.prompt,
                params=params,
                max_tokens=turn.num_tokens,
                snapshot_positions=turn.named,
            )
            call, tokens = stub.Connect(), list[int]()
            await call.write(pb.ConnectRequest(add_request=request.encode(asked)))
            async for message in call:
                new = updates.decode(message.updates)
                tokens += new.token_ids
                for end in new.finished_requests:
                    call.cancel()
                    if end.failure is not None:
                        raise RuntimeError(end.failure.message)
                    _check(turn, tokens)
                    return end.usage.cached_tokens
            raise RuntimeError("the scheduler has ended the stream")

        yield ask


@asynccontextmanager
async def llama(room: Room, peers: Path, *, has_prompt_cache: bool) -> AsyncIterator[Ask]:
    """llama-server: all memory in slots, or what as many slots as requests leave in its cache."""
    num_bytes = room.num_blocks * room.block_bytes
    slot_bytes = (room.longest // BLOCK_SIZE + 1 + room.state_blocks) * room.block_bytes
    num_slots = NUM_AT_ONCE if has_prompt_cache else max(NUM_AT_ONCE, num_bytes // slot_bytes)
    rest = max(0, num_bytes - num_slots * slot_bytes) // _MIB if has_prompt_cache else 0
    server = LlamaServer(
        peers,
        num_threads=1,  # several wait for each other, which takes long beside other processes
        log_folder=room.folder,
        extra_arguments=("--cache-ram", str(rest), *_CHECKPOINTS),
        model=room.model,
        slots=Slots(count=num_slots, tokens=room.longest + 1),
    )

    async def ask(turn: Turn) -> int:
        body = server.body(turn.prompt, max_tokens=turn.num_tokens)
        delimiters = _DELIMITERS if turn.named else []
        body |= {"logit_bias": [[TOKEN, _BIAS]], "message_delimiters": delimiters}
        answer = await post(server.endpoint, "/completion", body)
        _check(turn, answer["tokens"])
        found: int = answer["timings"]["cache_n"]
        return found

    try:
        await server.start()
        yield ask
    finally:
        server.stop()


def _check(turn: Turn, tokens: Sequence[int]) -> None:
    if list(tokens) != [TOKEN] * turn.num_tokens:
        raise RuntimeError(f"not {turn.num_tokens} tokens {TOKEN} were drawn: {tokens}")


async def found(server: AbstractAsyncContextManager[Ask], asked: Sequence[Sequence[Turn]]) -> int:
    """Returns the tokens of all counted prompts that a server finds."""
    num_found = 0
    async with server as ask:
        for turns in asked:
            counts = await asyncio.gather(*map(ask, turns))
            num_found += sum(n for n, turn in zip(counts, turns, strict=True) if turn.is_counted)
    return num_found


SERVERS: dict[str, Callable[[Room, Path], AbstractAsyncContextManager[Ask]]] = {
    "signalbox": lambda room, _: signalbox(room),
    "llama-server, slots": partial(llama, has_prompt_cache=False),
    "llama-server, prompt cache": partial(llama, has_prompt_cache=True),
}


async def cell(name: str, room: Room, peers: Path, asked: Sequence[Sequence[Turn]]) -> str:
    """Returns the share of the common prefixes that a server finds, or a dash if it is not here."""
    most, _ = common_prefixes(asked)
    try:
        return f"{await found(SERVERS[name](room, peers), asked) / most:.3f}"
    except PeerUnavailable as why:
        print(f"{name}: {why}", file=sys.stderr)
        return "–"


async def run(options: argparse.Namespace, folder: Path) -> None:
    config = config_of("qwen3.5-4b", 4) | _SIZES
    model = save_gguf(folder / "hybrid.gguf", config, shapes_of(config), "Q8_0")
    needs = examine_model(_settings(model)).needs
    state_blocks = needs.states_bytes // needs.kv_block_bytes // 2
    names = [name for name in SERVERS if _is_wanted(name, options.servers)]
    print(f"A state takes {state_blocks} blocks of {BLOCK_SIZE} tokens.\n")
    print(f"| requests | common prefixes, tokens | room for | {' | '.join(names)} |")
    print(f"|{'---|' * (3 + len(names))}")
    rng = random.Random(0)
    for requests, threads in traces(rng, shrink=options.shrink):
        asked = list(rounds(threads, rng))
        most, num_rows = common_prefixes(asked)
        for_all = num_rows + 2 * state_blocks * len(threads)
        for words, num_blocks in (("all", for_all), ("a third", for_all // 3)):
            if not _is_wanted(f"{requests}, room for {words}", options.only):
                continue
            room = Room(
                model=model,
                block_bytes=needs.kv_block_bytes,
                state_blocks=state_blocks,
                num_blocks=num_blocks,
                longest=max(len(t.prompt) + t.num_tokens for turns in asked for t in turns),
                folder=folder,
            )
            cells = [await cell(name, room, options.peers, asked) for name in names]
            print(f"| {requests} | {most} | {words} | {' | '.join(cells)} |", flush=True)


def _is_wanted(name: str, parts: Sequence[str] | None) -> bool:
    return not parts or any(part in name for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peers", type=Path, metavar="DIR")
    parser.add_argument("--shrink", type=int, default=1, help="divides the number of threads")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="as REQUESTS, room for ROOM; or a part of it"
    )
    parser.add_argument("--servers", nargs="+", metavar="NAME", help="or a part of it")
    exit_on_sigterm()
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(options, Path(folder)))


if __name__ == "__main__":
    main()

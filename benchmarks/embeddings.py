"""Texts embedded in a second by us and by peers, server against server, in turns.

    python -m benchmarks.embeddings [MODEL] [--peers DIR] [--url NAME=URL] [--chat MODEL.gguf] ...

MODEL is a directory of sentence-transformers; without one, a BERT of MiniLM's shape is made up.
Every server is asked at its /v1/embeddings by the same client, for vectors of texts of mixed
lengths that none has seen. DIR may have an environment for each peer: st (without it,
sentence-transformers runs in ours), infinity, vllm. A round gives each server its turn, the next
round in the opposite order. --chat also measures how long a stream of that model, which our stack
serves on the same machine, waits between two tokens while a call of 2,048 texts is embedded.
"""

import argparse
import asyncio
import base64
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.comparison.embedding_report import Load, Turn, report
from benchmarks.comparison.turns import in_turns
from benchmarks.harness.prompts import random_prompts
from benchmarks.harness.random_encoder import save_encoder
from benchmarks.memory.memory_pressure import VOCAB_SIZE
from benchmarks.peers.embedding_servers import (
    EmbeddingServer,
    InfinityServer,
    RunningServer,
    SentenceTransformersServer,
    SignalboxEmbeddings,
    VllmEmbeddings,
)
from benchmarks.peers.process import PeerUnavailable, ServerProcess
from benchmarks.peers.signalbox_server import SignalboxServer
from signalbox.bench.http_target import HttpTarget
from signalbox.bench.load_loops import closed_loop
from signalbox.bench.measurements import Measured, observe
from signalbox.bench.workload import BenchRequest, SyntheticTexts
from signalbox.client.connection import PLAIN
from signalbox_worker.batch.arrays import FloatArray

_COMPARED = SyntheticTexts(num_requests=1, max_words=200, texts_per_request=8, seed=10**6)
"""Texts whose vectors are compared between servers."""
_ALONE_S = 5.0
_STREAM_TOKENS = 512


async def measure(
    server: EmbeddingServer,
    loads: Sequence[Load],
    *,
    max_words: int,
    seed: int,
    chat: ServerProcess | None = None,
    num_beside: int = 2048,
) -> Turn:
    """Puts all loads to a server that is ready. Raises PeerUnavailable if a request fails."""
    turn = Turn(vectors=await vectors_of(server))
    async with HttpTarget(server.url, PLAIN) as target:
        warm_up = Load(clients=4, num_requests=16).asks(max_words=max_words, seed=seed + 1)
        _checked(await closed_loop(target.send, warm_up, concurrency=4))
        for number, load in enumerate(loads):
            asks = load.asks(max_words=max_words, seed=seed + 2 + number)
            turn.loads[load] = _checked(
                await closed_loop(target.send, asks, concurrency=load.clients)
            )
        if chat is not None:
            asks = Load(clients=1, num_requests=1, texts_per_request=num_beside).asks(
                max_words=max_words, seed=seed
            )
            await _beside(target, asks, chat, turn)
    return turn


def _checked(measured: Measured) -> Measured:
    if measured.failures:
        raise PeerUnavailable(f"requests failed: {dict(measured.failures)}")
    return measured


async def vectors_of(server: EmbeddingServer) -> FloatArray:
    """Returns the vectors of the texts that are compared, one in each row."""
    (ask,) = _COMPARED.asks()
    async with HttpTarget(server.url, PLAIN) as target:
        answer = await target.embeddings(ask.texts)
    rows = sorted(answer["data"], key=lambda one: int(one["index"]))
    return np.array([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in rows])


async def _beside(
    target: HttpTarget, asks: list[BenchRequest], chat: ServerProcess, turn: Turn
) -> None:
    """Lets a chat stream while the texts are embedded, and before."""
    streamed = Measured()
    client = asyncio.create_task(_keep_streaming(chat, streamed))
    try:
        while len(streamed.between_tokens_s) < 16:
            await _unless_failed(client, 0.05)
        streamed.between_tokens_s.clear()
        await _unless_failed(client, _ALONE_S)
        turn.gaps_alone_s, streamed.between_tokens_s = streamed.between_tokens_s, []
        _checked(await closed_loop(target.send, asks, concurrency=1))
        turn.gaps_beside_s, streamed.between_tokens_s = streamed.between_tokens_s, []
    finally:
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)


async def _keep_streaming(chat: ServerProcess, measured: Measured) -> None:
    for prompt in random_prompts(vocab_size=VOCAB_SIZE, num_tokens=32):
        await observe(chat.stream(prompt, max_tokens=_STREAM_TOKENS), measured)


async def _unless_failed(client: "asyncio.Task[None]", seconds: float) -> None:
    done, _ = await asyncio.wait({client}, timeout=seconds)
    for one in done:
        one.result()


def servers(options: argparse.Namespace, model: Path, logs: Path) -> list[EmbeddingServer]:
    """Returns the participants, ours first."""
    how = {"num_threads": options.threads, "log_folder": logs}
    peers = (SentenceTransformersServer, InfinityServer, VllmEmbeddings)
    everybody: list[EmbeddingServer] = [SignalboxEmbeddings(model, **how)]
    everybody += [peer(model, options.peers, **how) for peer in peers]
    if options.only:
        everybody = [
            one for one in everybody if any(word in one.name.lower() for word in options.only)
        ]
    for given in options.url:
        name, _, url = given.partition("=")
        everybody.append(RunningServer(name, url, log_folder=logs))
    return everybody


async def run(options: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="signalbox-bench-"))
    model = options.model or save_encoder(folder)
    loads = [
        Load(clients=clients, num_requests=max(options.requests, clients))
        for clients in options.clients
    ]
    loads.append(Load(clients=1, num_requests=1, texts_per_request=options.texts))
    chat = SignalboxServer(options.chat, log_folder=folder, label="chat") if options.chat else None

    async def turn(server: EmbeddingServer, round_number: int) -> Turn:
        return await measure(
            server,
            loads,
            max_words=options.longest,
            seed=1000 * round_number,
            chat=chat,
            num_beside=options.texts,
        )

    everybody = servers(options, model, folder)
    try:
        if chat is not None:
            await chat.start()
        results = await in_turns(everybody, turn, rounds=options.rounds)
    finally:
        if chat is not None:
            chat.stop()
    print(report(results, loads))
    for one in everybody:
        if results[one.name] and (build := one.build()):
            print(f"- {one.name}: {build}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, help="directory of sentence-transformers")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder of environments")
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="a server that runs already, such as tei=http://127.0.0.1:8080/v1",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="or a part of it, in lower case")
    parser.add_argument("--chat", type=Path, metavar="MODEL", help="what a stream beside is of")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--requests", type=int, default=128, help="of all clients together")
    parser.add_argument("--longest", type=int, default=200, help="words of the longest text")
    parser.add_argument("--texts", type=int, default=2048, help="texts of the call of many")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of a peer")
    parser.add_argument("--rounds", type=int, default=3)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""The benchmark of embeddings, against a router whose vectors say what it was asked."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.comparison.embedding_report import Load, Turn, report
from benchmarks.embeddings import measure, vectors_of
from benchmarks.peers.embedding_servers import (
    InfinityServer,
    RunningServer,
    SentenceTransformersServer,
)
from benchmarks.peers.process import PeerUnavailable
from tests.router.apis.openai.clients import Http, make_http
from tests.router.generation.pooling.pooling_stack import (
    EMBEDS,
    counts,
    make_pooling_files,
    pooling,
)

ONE, MANY = Load(clients=1, num_requests=4), Load(clients=3, num_requests=6, texts_per_request=5)


class Chat:
    """Brings a token each millisecond."""

    async def stream(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
        for _ in range(max_tokens):
            await asyncio.sleep(0.001)
            yield 1


def server_of(http: Http, folder: Path) -> RunningServer:
    return RunningServer("ours", str(http.sdk.base_url), log_folder=folder)


async def test_every_load_is_put_and_a_stream_beside_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.embeddings._ALONE_S", 0.01)
    async with make_http(pooling(counts), files=make_pooling_files(), pooling=EMBEDS) as http:
        server = server_of(http, tmp_path)
        turn = await measure(server, [ONE, MANY], max_words=9, seed=0, chat=Chat(), num_beside=200)
    assert turn.loads[ONE].num_texts == 4
    assert turn.loads[MANY].num_texts == 30
    assert turn.gaps_alone_s
    assert turn.gaps_beside_s
    shown = report({"ours": [turn], "out": []}, [ONE, MANY])
    assert shown.count("| ours |") == 3
    assert "out" not in shown.replace("without", "")


async def test_a_request_that_fails_puts_a_server_out(tmp_path: Path) -> None:
    async with make_http(pooling(counts), files=make_pooling_files(), pooling=EMBEDS) as http:
        with pytest.raises(PeerUnavailable, match="400 Bad Request"):
            await measure(server_of(http, tmp_path), [ONE], max_words=5000, seed=0)


async def test_vectors_of_servers_are_compared(tmp_path: Path) -> None:
    async with make_http(pooling(counts), files=make_pooling_files(), pooling=EMBEDS) as http:
        vectors = await vectors_of(server_of(http, tmp_path))
    assert vectors.shape == (8, 4)
    assert len({*vectors[:, 0]}) > 1  # texts of mixed lengths
    turns = {"a": [Turn(vectors=vectors)], "b": [Turn(vectors=vectors + np.float32(0.5))]}
    assert "- b: elements differ by at most 5.0e-01" in report(turns, [])


@pytest.mark.parametrize("has_folder", [True, False])
def test_sentence_transformers_may_run_in_our_environment(has_folder: bool, tmp_path: Path) -> None:
    peers = tmp_path if has_folder else None
    peer = SentenceTransformersServer(tmp_path, peers, num_threads=1, log_folder=tmp_path)
    assert Path(peer.command()[0]) == Path(sys.prefix) / "bin" / "python"


async def test_a_peer_without_a_folder_says_so(tmp_path: Path) -> None:
    peer = InfinityServer(tmp_path, None, num_threads=1, log_folder=tmp_path)
    with pytest.raises(PeerUnavailable, match="no --peers"):
        await peer.start()

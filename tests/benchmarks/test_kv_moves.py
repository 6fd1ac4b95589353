"""The benchmarks of KV that moves between workers of several ranks, on a small scale."""

from pathlib import Path

import pytest

from benchmarks import drain, kv_peers
from tests.gpu_worker.tiny_models import make_llama

pytestmark = pytest.mark.system


@pytest.fixture
def model(tmp_path: Path) -> str:
    make_llama(tmp_path, max_position_embeddings=32768)
    return str(tmp_path)


async def test_a_stream_of_two_ranks_is_handed_over(model: str) -> None:
    gaps = await drain.measure_model(
        model,
        context=40,
        num_streams=1,
        hands_over=True,
        pipeline_parallel_size=2,
        kv_gib=0.05,
    )
    assert gaps.num_out == 1
    assert gaps.longest > 0


async def test_first_tokens_of_workers_of_two_ranks_are_timed(model: str) -> None:
    rows = kv_peers.rows(
        model, tokens=[100], rounds=1, pipeline_parallel_size=2, kv_cache_memory=0.05
    )
    (cells,) = [row.strip("| ").split(" | ") async for row in rows]
    assert cells[0] == "100"
    assert all(float(cell) > 0 for cell in cells[1:3])

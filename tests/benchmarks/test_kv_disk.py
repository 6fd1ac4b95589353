"""The benchmark of the disk tier, on a small scale."""

from pathlib import Path

from benchmarks.kv_disk import make_index, measure_first_tokens, measure_index, measure_reads
from signalbox_worker.kv.disk.disk_index import DiskIndex
from tests.gpu_worker.tiny_models import make_llama

NUM_BLOCKS = 20_000


def folder(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


def test_an_index_takes_few_bytes_and_statements_for_each_block(tmp_path: Path) -> None:
    figures = measure_index(folder(tmp_path / "kv"), NUM_BLOCKS)
    assert figures.bytes_per_block < 100
    assert figures.num_statements == 3  # for 128 blocks: 1, 15 and 112


def test_a_start_reads_no_more_of_a_larger_index(tmp_path: Path) -> None:
    statements = []
    for num_blocks in (10, NUM_BLOCKS):
        path = tmp_path / f"{num_blocks}.index"
        make_index(path, num_blocks)
        index = DiskIndex(path, identity=b"\1" * 32, block_bytes=1 << 18)
        seen: list[str] = []
        for connection in (index._connection.reader, index._connection.writer):
            connection.set_trace_callback(seen.append)
        index.check(num_slots=num_blocks)
        plans = [
            str(index._connection.writer.execute(f"EXPLAIN QUERY PLAN {one}").fetchall())
            for one in seen
            if one.startswith("SELECT")
        ]
        assert plans
        assert not [plan for plan in plans if "SCAN blocks" in plan or "SEARCH blocks" in plan]
        statements.append(len(seen))
        index.close()
    assert statements[0] == statements[1]


def test_reads_are_compared_with_plain_ones(tmp_path: Path) -> None:
    rates = measure_reads(folder(tmp_path / "kv"), block_bytes=1 << 16, num_blocks=20)
    assert min(rates) > 0


def test_first_tokens_are_timed_computed_and_from_the_disk(tmp_path: Path) -> None:
    make_llama(folder(tmp_path / "model"))
    options = {"max_model_len": 250, "kv_cache_memory": 0.05, "num_threads": 1}
    times = measure_first_tokens(str(tmp_path / "model"), folder(tmp_path / "kv"), 200, **options)
    assert min(times) > 0

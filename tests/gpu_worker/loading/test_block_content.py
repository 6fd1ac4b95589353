"""Workers whose blocks may differ announce different formats, or none."""

from dataclasses import replace

from contract.model import WorkerCapacity
from gpu_worker.loading.block_content import BlockContent

CONTENT = BlockContent((), block_bytes=32, description="layout", fingerprint="ab")
CAPACITY = WorkerCapacity(
    block_size=16,
    num_gpu_blocks=8,
    num_cpu_blocks=2,
    block_bytes=32,
    max_num_seqs=4,
    max_num_batched_tokens=64,
)


def test_equal_content_has_one_format_and_other_content_another() -> None:
    contents = [CONTENT, replace(CONTENT, description="other"), replace(CONTENT, fingerprint="cd")]
    formats = [content.format_of(CAPACITY) for content in contents]
    assert len(set(formats)) == 3
    assert replace(CONTENT).format_of(replace(CAPACITY, num_cpu_blocks=5)) == formats[0]


def test_workers_that_exchange_nothing_have_no_format() -> None:
    for capacity in (
        replace(CAPACITY, num_cpu_blocks=0),
        replace(CAPACITY, tensor_parallel_size=2),
        replace(CAPACITY, pipeline_parallel_size=2),
    ):
        assert CONTENT.format_of(capacity) == ""

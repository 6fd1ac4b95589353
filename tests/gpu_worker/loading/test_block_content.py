"""Workers whose blocks may differ announce different formats, or none."""

from dataclasses import replace

from contract.model import WorkerCapacity
from gpu_worker.loading.block_content import BlockContent, format_of_ranks

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
    assert CONTENT.format_of(replace(CAPACITY, num_cpu_blocks=0)) == ""


def test_the_format_of_a_worker_is_that_of_the_shares_of_its_ranks_in_their_order() -> None:
    assert format_of_ranks(["a", "b"]) == format_of_ranks(["a", "b"])
    formats = [["a"], ["a", "a"], ["a", "b"], ["b", "a"]]
    assert len(set(map(format_of_ranks, formats))) == 4
    assert format_of_ranks(["a", ""]) == "", "a rank exchanges nothing"

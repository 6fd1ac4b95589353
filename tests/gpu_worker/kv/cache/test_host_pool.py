"""Swap memory lies where the system was asked to put it, or says why not."""

import mmap
from pathlib import Path

import pytest
import torch

from signalbox_kernels import pages
from signalbox_worker.device.cuda_streams import node_of
from signalbox_worker.device.streams import HostStreams
from signalbox_worker.kv.cache.host_pool import SwapMemory, num_nodes, pinnable_bytes, prefer_node


def address_of(memory: mmap.mmap) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


def test_pages_are_asked_for_on_a_node() -> None:
    memory = pages.map_pages(1 << 20)
    address = address_of(memory)
    if not prefer_node(0, address=address, num_bytes=len(memory)):
        pytest.skip("this system lets nobody choose a node")
    maps = Path("/proc/self/numa_maps")
    if not maps.exists():
        pytest.skip("this system does not say where pages are")
    policies = [line.split()[1] for line in maps.read_text().splitlines() if f"{address:x}" in line]
    assert any(policy.startswith(("prefer", "bind")) for policy in policies)


def test_more_than_the_process_may_have_is_refused_in_words() -> None:
    with pytest.raises(MemoryError, match=r"^4,398,046,511,104\.0 MiB of memory .*ulimit -v"):
        pages.map_pages(1 << 62)


def test_a_node_that_is_not_there_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    memory = pages.map_pages(mmap.PAGESIZE)
    assert not prefer_node(1023, address=address_of(memory), num_bytes=len(memory))
    assert "not bound to NUMA node 1023" in caplog.text


def test_nodes_are_counted(tmp_path: Path) -> None:
    assert num_nodes(tmp_path) == 1
    for name in ("node0", "node1", "online"):
        (tmp_path / name).mkdir()
    assert num_nodes(tmp_path) == 2


@pytest.mark.parametrize(("content", "node"), [("1\n", 1), ("-1\n", None), ("", None)])
def test_the_node_of_a_device_is_what_linux_says(
    tmp_path: Path, content: str, node: int | None
) -> None:
    folder = tmp_path / "0000:1b:00.0"
    folder.mkdir()
    (folder / "numa_node").write_text(content)
    assert node_of("0000:1b:00.0", tmp_path) == node
    assert node_of("0000:1c:00.0", tmp_path) is None


def test_a_pool_is_zero_and_may_be_empty() -> None:
    memory = SwapMemory(num_blocks=3, block_bytes=100, streams=HostStreams())
    assert memory.pool.shape == (3, 100)
    assert not memory.pool.any()
    memory.close()
    assert SwapMemory(num_blocks=0, block_bytes=100, streams=HostStreams()).pool.shape == (0, 100)


class LimitedStreams(HostStreams):
    """Pins up to a limit, and counts what is pinned."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.pinned = limit, 0

    def pin(self, address: int, num_bytes: int) -> None:
        if num_bytes > self.limit:
            raise MemoryError("the limit of this test")
        self.pinned += 1

    def unpin(self, address: int) -> None:
        self.pinned -= 1


@pytest.mark.parametrize(
    ("limit", "expected"), [(1 << 24, 1 << 22), (1 << 22, 1 << 22), (3 << 20, 1 << 21), (0, 0)]
)
def test_what_can_be_pinned_is_halved_until_it_is(limit: int, expected: int) -> None:
    streams = LimitedStreams(limit)
    assert pinnable_bytes(1 << 22, streams) == expected
    assert streams.pinned == 0

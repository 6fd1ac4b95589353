"""CUDA's recorder against a stand-in of PyTorch's rules; tests/gpu has the real ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from weakref import WeakSet

import pytest
import torch

from signalbox_worker.device import cuda_graphs
from signalbox_worker.device.cuda_graphs import CudaGraphs
from signalbox_worker.device.graphs import NotCapturable

_REFUSED = "CUDA error: operation not permitted when stream is capturing"
_BROKEN_OFF = "CUDA error: operation failed due to a previous error during capture\nand more"


class Graph:
    """A recorded graph that does nothing."""


class Recording:
    """torch.cuda.graph: what raises at its end leaves its stream the current one."""

    def __init__(self, cuda: "StandIn", graph: Graph, pool: int, stream: str) -> None:
        self._cuda, self._graph, self._pool, self._stream = cuda, graph, pool, stream

    def __enter__(self) -> None:
        cuda = self._cuda
        if self._pool in cuda.pools and not cuda.pools[self._pool]:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self._before, cuda.current, cuda.is_capturing = cuda.current, self._stream, True

    def __exit__(self, *_: object) -> None:
        cuda = self._cuda
        cuda.is_capturing = False
        if cuda.is_broken_off:
            cuda.is_broken_off = False
            raise RuntimeError(_BROKEN_OFF)
        cuda.pools.setdefault(self._pool, WeakSet()).add(self._graph)
        cuda.current = self._before


class StandIn:
    """What of torch.cuda records graphs."""

    CUDAGraph = Graph

    def __init__(self) -> None:
        self.current = "computes"
        self.is_capturing = self.is_broken_off = False
        self.pools: dict[int, WeakSet[Graph]] = {}
        self._num_pools = 0

    def graph_pool_handle(self) -> int:
        self._num_pools += 1
        return self._num_pools

    def Stream(self, device: torch.device) -> str:
        return "records"

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def graph(self, graph: Graph, *, pool: int, stream: str, capture_error_mode: str) -> Recording:
        return Recording(self, graph, pool, stream)

    def synchronize(self, device: torch.device) -> None:
        assert not self.is_capturing

    def get_sync_debug_mode(self) -> int:
        return 0

    def set_sync_debug_mode(self, mode: int | str) -> None:
        assert not self.is_capturing


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    fake = SimpleNamespace(cuda=made, OutOfMemoryError=torch.OutOfMemoryError)
    monkeypatch.setattr(cuda_graphs, "torch", fake)
    return made


def breaking_off(cuda: StandIn, error: Exception) -> Callable[[], None]:
    """Work that only fails while it is recorded."""

    def work() -> None:
        if cuda.is_capturing:
            cuda.is_broken_off = True
            raise error

    return work


def test_work_that_breaks_a_recording_off_is_not_capturable(cuda: StandIn) -> None:
    recorder = CudaGraphs(torch.device("cuda"))
    with pytest.raises(NotCapturable, match=r"previous error during capture$"):
        recorder.capture(breaking_off(cuda, RuntimeError(_REFUSED)))
    assert cuda.current == "computes"  # or steps would be on another stream than their events


def test_a_lost_device_is_no_reason_to_go_on_without_graphs(cuda: StandIn) -> None:
    recorder = CudaGraphs(torch.device("cuda"))

    def work() -> None:
        if cuda.is_capturing:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory") as caught:
        recorder.capture(work)
    assert not isinstance(caught.value, NotCapturable)
    assert cuda.current == "computes"


def test_graphs_share_a_pool_until_all_are_gone(cuda: StandIn) -> None:
    recorder = CudaGraphs(torch.device("cuda"))
    for _ in range(2):  # of each cache
        graphs = [recorder.capture(lambda: None) for _ in range(3)]
        assert sorted(len(pool) for pool in cuda.pools.values())[-1] == len(graphs)
        del graphs
    assert len(cuda.pools) == 2

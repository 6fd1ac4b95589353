"""CUDA graphs; satisfies the protocols of `graphs.py`.

Work is run twice on the stream that it is recorded on, before it is: once to compile kernels and
let libraries take their workspaces outside the graphs' pool; once more while PyTorch raises at each
wait for the device, because such work would break a recording off half-way.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch

from signalbox_worker.device.graphs import NotCapturable


class CudaGraphs:
    """One device's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize(self._device)
        # Leaves the stream whatever happens; a recording that fails as it ends does not.
        with torch.cuda.stream(self._stream):
            work()
            with _waits_refused():
                work()
            torch.cuda.synchronize(self._device)
            with _broken_off_is_not_capturable():
                graph = self._record(work)
        self._graphs.add(graph)
        return graph

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        if not self._graphs:  # PyTorch takes no pool again whose graphs are all gone
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads may wait for events meanwhile, which the default mode forbids.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            work()
        return graph

    def used_bytes(self) -> int:
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free


@contextmanager
def _waits_refused() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        raise NotCapturable(str(error).partition("\n")[0]) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _broken_off_is_not_capturable() -> Iterator[None]:
    """Raises NotCapturable for a call that CUDA refuses during a recording, with its message."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        if "captur" not in text:
            raise
        raise NotCapturable(text) from error

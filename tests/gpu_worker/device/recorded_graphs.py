"""Graphs on a CPU, as strict as CUDA's: operations are recorded one by one and run again as such.

What runs again are PyTorch's operators and Triton's kernels, on the very tensors that they were
recorded with; no Python of ours runs. So whatever the host computed, or read from a tensor, while
work was recorded stays as it was then, as it would on a GPU, and shows in the output. Asking for a
tensor's value while recording is refused, as by CUDA.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from signalbox_worker.device.graphs import NotCapturable

_aten = torch.ops.aten
_WAITING = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
}


class RecordedGraph:
    """Operations in order."""

    def __init__(self) -> None:
        self.operations: list[Callable[[], None]] = []

    def replay(self) -> None:
        for operation in self.operations:
            operation()


class GraphsOnCpu:
    """Satisfies `GraphRecorder`; counts, and pretends to take memory."""

    def __init__(self, *, bytes_each: Sequence[int] = (0,)) -> None:
        self.num_captured = 0
        self.num_replayed = 0
        self._bytes_each = bytes_each
        self._used = 1 << 30

    def capture(self, work: Callable[[], None]) -> "CountedGraph":
        work()
        graph = RecordedGraph()
        with _Recording(graph), _triton_recorded(graph), _values_refused():
            work()
        self._used += self._bytes_each[min(self.num_captured, len(self._bytes_each) - 1)]
        self.num_captured += 1
        return CountedGraph(self, graph)

    def used_bytes(self) -> int:
        return self._used


class CountedGraph:
    """A recorded graph that says when it is run."""

    def __init__(self, recorder: GraphsOnCpu, graph: RecordedGraph) -> None:
        self._recorder = recorder
        self._graph = graph

    def replay(self) -> None:
        self._recorder.num_replayed += 1
        self._graph.replay()


class _Recording(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if waits(func, args):
            raise NotCapturable(f"{func} waits for the device")
        results = func(*args, **kwargs)
        if not (func.is_view and _share_memory(results, args)):  # reshape may copy
            self._graph.operations.append(lambda: _again(func, args, kwargs, results))
        return results


def _again(func: Any, args: Any, kwargs: Any, results: Any) -> None:
    """Runs an operation on the tensors of the recording, into its results."""
    for old, new in zip(_tensors(results), _tensors(func(*args, **kwargs)), strict=True):
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)


def _share_memory(results: Any, args: Any) -> bool:
    given = {tensor.untyped_storage().data_ptr() for tensor in _tensors(args)}
    return all(tensor.untyped_storage().data_ptr() in given for tensor in _tensors(results))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def waits(func: Any, args: Any) -> bool:
    """Returns whether an operator asks the device for a value."""
    return func in _WAITING or _has_mask_as_index(func, args)


def _has_mask_as_index(func: Any, args: Any) -> bool:
    if func not in (_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default):
        return False
    return any(index is not None and index.dtype == torch.bool for index in args[1])


@contextmanager
def _values_refused() -> Iterator[None]:
    """Refuses what reads a CPU's tensors without an operator."""

    def refuse(tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        raise NotCapturable("the host asks for a tensor's values")

    names = ("tolist", "numpy")
    before = [getattr(Tensor, name) for name in names]
    for name in names:
        setattr(Tensor, name, refuse)
    try:
        yield
    finally:
        for name, method in zip(names, before, strict=True):
            setattr(Tensor, name, method)


@contextmanager
def _triton_recorded(graph: RecordedGraph) -> Iterator[None]:
    """Records launches of interpreted kernels, which PyTorch does not see."""
    try:
        from triton.runtime.interpreter import GridExecutor
    except ImportError:
        yield
        return
    launch = GridExecutor.__call__

    def record(executor: Any, *args: Any, **kwargs: Any) -> None:
        def again() -> None:
            with _disable_current_modes():
                launch(executor, *args, **kwargs)

        again()
        graph.operations.append(again)

    GridExecutor.__call__ = record
    try:
        yield
    finally:
        GridExecutor.__call__ = launch

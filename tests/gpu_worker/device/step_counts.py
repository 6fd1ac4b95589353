"""Counts what a step asks of a device that is not there; nothing is computed.

Tensors of the device are PyTorch's "meta" ones. Whatever would wait for it is refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from tests.gpu_worker.device.recorded_graphs import waits

_META = torch.device("meta")
_COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
_MAKES = {
    getattr(torch.ops.aten, name)
    for name in ("empty", "new_empty", "empty_strided", "new_empty_strided", "empty_like")
}


@dataclass(slots=True)
class StepCounts:
    """Counts since the last `clear`."""

    launches: int = 0
    """Kernels, PyTorch's and Triton's; a graph is one."""
    copies_in: int = 0
    copies_out: int = 0
    tensors_made: int = 0
    """Tensors of the device that take memory of their own."""
    graphs: int = 0
    operators: list[str] = field(default_factory=list)
    """What was launched."""

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


class _Counting(TorchDispatchMode):
    def __init__(self, counts: StepCounts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        if func in _COPIES and _meets(args, kwargs, given):
            return self._copy(func, args, kwargs)
        if any(tensor.device == _META for tensor in given):
            assert not waits(func, args), f"{func} waits for the device"
        results = func(*args, **kwargs)
        made = [tensor for tensor in _tensors(results) if tensor.device == _META]
        if not made or func.is_view:
            return results
        is_new = all(each.alias_info is None for each in func._schema.returns)
        self._counts.tensors_made += len(made) if is_new else 0
        if func.overloadpacket not in _MAKES:
            self._counts.launches += 1
            self._counts.operators.append(str(func))
        return results

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        if args[0].device == _META and func is torch.ops.aten.copy_.default:
            self._counts.copies_in += 1
            return args[0]
        assert func is torch.ops.aten.copy_.default, "a copy that waits for the device"
        assert args[2:] == (True,) or kwargs.get("non_blocking"), "a copy that waits"
        self._counts.copies_out += 1
        return args[0].zero_()


def _meets(args: Any, kwargs: Any, given: list[Tensor]) -> bool:
    """Returns whether a copy is between the device and the host."""
    devices = {tensor.device for tensor in given}
    if kwargs.get("device") is not None:
        devices.add(kwargs["device"])
    return _META in devices and len(devices) > 1


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


class _CountedGraph:
    def __init__(self, counts: StepCounts) -> None:
        self._counts = counts

    def replay(self) -> None:
        self._counts.graphs += 1
        self._counts.launches += 1


class CountedGraphs:
    """Satisfies `GraphRecorder`."""

    def __init__(self, counts: StepCounts) -> None:
        self._counts = counts

    def capture(self, work: Callable[[], None]) -> _CountedGraph:
        work()
        return _CountedGraph(self._counts)

    def used_bytes(self) -> int:
        return 0


@contextmanager
def counted(counts: StepCounts) -> Iterator[None]:
    """Counts what is done within it; interpreted kernels are not run."""
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def count(*args: Any, **kwargs: Any) -> None:
        counts.launches += 1

    GridExecutor.__call__ = count
    try:
        with _Counting(counts):
            yield
    finally:
        GridExecutor.__call__ = launch

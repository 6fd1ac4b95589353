"""Device, sizes, settings and timers of the GPU benchmark. It imports no model."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

BLOCK_SIZE = 16

_GRAPH_S = 0.05
"""Seconds of work in a graph: long beside its launch, short beside the part's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Context of every part of the benchmark."""

    device: torch.device
    tiny: bool
    folder: Path
    """Folder for files that a part needs while it runs."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of workers by the names of their fields, such as {"enforce_eager": True}."""

    def pick(self, full: int, tiny: int) -> int:
        """Returns a size that suits."""
        return tiny if self.tiny else full

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], *, rounds: int = 20, warm_up: int = 3) -> float:
        """Returns the median time of a call, the device's work included."""
        rounds, warm_up = self.pick(rounds, 2), self.pick(warm_up, 1)
        times = []
        for _ in range(warm_up + rounds):
            self.synchronize()
            start = time.perf_counter()
            work()
            self.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times[warm_up:])

    def kernel_seconds(self, *works: Callable[[], object]) -> float:
        """Returns the time of a call on the device: the median of three rounds of many calls.

        On CUDA the calls are recorded in a graph, so that the host's work between them does not
        count. Several works take turns: where each reads tensors of its own, these come from the
        device's memory and not from its cache.
        """
        one = max(self.seconds(work, rounds=3, warm_up=1) for work in works)
        turns = self.pick(max(3, min(64, int(_GRAPH_S / one))) // len(works) or 1, 1)
        calls = turns * len(works)

        def many() -> None:
            for _ in range(turns):
                for work in works:
                    work()

        if self.device.type != "cuda":
            return self.seconds(many, rounds=3, warm_up=1) / calls
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            many()
        return statistics.median(_replay_seconds(graph) for _ in range(4)) / calls


def _replay_seconds(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3

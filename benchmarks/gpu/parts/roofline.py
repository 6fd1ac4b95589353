"""Measures the card itself: copy bandwidth, pinned transfers, matrix rate; each three times.

The median counts, and the note has all three. The card's clocks right after the matrices are a note
too, since a card that is hot or shared runs at lower ones.
"""

import statistics
from collections.abc import Callable

import torch

from benchmarks.gpu import card
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure
from signalbox_worker.device.device_choice import streams_of
from signalbox_worker.kv.cache.host_pool import SwapMemory

COPY = "copy bandwidth"
MATRICES = "matrix rate"
TO_DEVICE, TO_HOST = "pinned copy to the device", "pinned copy to RAM"
_NUM_RUNS = 3


@torch.inference_mode()
def measure(bench: Bench) -> list[Measure]:
    return [_copy(bench), _matrices(bench), *_pinned(bench)]


def _copy(bench: Bench) -> Measure:
    size = bench.pick(4 << 30, 1 << 20)
    source = torch.ones(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    return _median(
        COPY,
        lambda: 2 * size / bench.kernel_seconds(lambda: target.copy_(source)) / 1e9,
        unit="GB/s",
        note=lambda: "reads and writes counted",
    )


def _matrices(bench: Bench) -> Measure:
    size = bench.pick(8192, 64)
    left, right = (torch.randn(size, size, device=bench.device).bfloat16() for _ in range(2))
    return _median(
        MATRICES,
        lambda: 2 * size**3 / bench.kernel_seconds(lambda: left @ right) / 1e12,
        unit="TFLOP/s",
        note=lambda: card.state(bench.device.type),
    )


def _pinned(bench: Bench) -> list[Measure]:
    size = bench.pick(1 << 30, 1 << 20)
    memory = SwapMemory(num_blocks=1, block_bytes=size, streams=streams_of(bench.device))
    on_device = torch.ones(1, size, dtype=torch.uint8, device=bench.device)

    def rate(copy: Callable[[], object]) -> float:
        return size / bench.seconds(copy, rounds=5, warm_up=1) / 1e9

    found = [
        _median(TO_HOST, lambda: rate(lambda: memory.pool.copy_(on_device, non_blocking=True))),
        _median(TO_DEVICE, lambda: rate(lambda: on_device.copy_(memory.pool, non_blocking=True))),
    ]
    memory.close()
    return found


def _median(
    name: str,
    run: Callable[[], float],
    *,
    unit: str = "GB/s",
    note: Callable[[], str] = lambda: "",
) -> Measure:
    rates = [run() for _ in range(_NUM_RUNS)]
    notes = ("median of " + ", ".join(f"{rate:,.4g}" for rate in rates), note())
    return Measure(
        name=name,
        value=statistics.median(rates),
        unit=unit,
        note="; ".join(filter(None, notes)),
    )

"""Measures the card itself: copy bandwidth, pinned transfers, matrix rate."""

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure
from gpu_worker.device.device_choice import streams_of
from gpu_worker.kv_cache.host_pool import SwapMemory

COPY = "copy bandwidth"
MATRICES = "matrix rate"
TO_DEVICE, TO_HOST = "pinned copy to the device", "pinned copy to RAM"


@torch.inference_mode()
def measure(bench: Bench) -> list[Measure]:
    return [_copy(bench), _matrices(bench), *_pinned(bench)]


def _copy(bench: Bench) -> Measure:
    size = bench.pick(4 << 30, 1 << 20)
    source = torch.ones(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds = bench.seconds(lambda: target.copy_(source))
    return Measure(
        name=COPY, value=2 * size / seconds / 1e9, unit="GB/s", note="reads and writes counted"
    )


def _matrices(bench: Bench) -> Measure:
    size = bench.pick(8192, 64)
    left = torch.randn(size, size, device=bench.device).bfloat16()
    seconds = bench.kernel_seconds(lambda: left @ left, calls=10)
    return Measure(name=MATRICES, value=2 * size**3 / seconds / 1e12, unit="TFLOP/s")


def _pinned(bench: Bench) -> list[Measure]:
    size = bench.pick(1 << 30, 1 << 20)
    memory = SwapMemory(num_blocks=1, block_bytes=size, streams=streams_of(bench.device))
    on_device = torch.ones(1, size, dtype=torch.uint8, device=bench.device)
    to_host = bench.seconds(lambda: memory.pool.copy_(on_device, non_blocking=True))
    to_device = bench.seconds(lambda: on_device.copy_(memory.pool, non_blocking=True))
    memory.close()
    rates = ((TO_HOST, to_host), (TO_DEVICE, to_device))
    return [Measure(name=name, value=size / s / 1e9, unit="GB/s") for name, s in rates]

"""Measures how fast this worker computes and copies: first figures, which the scheduler refines."""

import statistics
import time
from collections.abc import Callable

import torch

COPY_BYTES = 32 << 20
NUM_COPIES = 3


def seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Runs `work` on a device; returns how long that took."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def copy_bytes_per_s(device: torch.device) -> float:
    """Copies between the device and swap memory a few times; returns the median rate."""
    on_device = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
    swap = torch.ones(COPY_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    times = [seconds(device, lambda: swap.copy_(on_device)) for _ in range(NUM_COPIES)]
    return COPY_BYTES / statistics.median(times)

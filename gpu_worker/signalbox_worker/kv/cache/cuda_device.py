"""Measures a CUDA device; satisfies `MeasuredDevice`."""

import statistics
import time
from collections.abc import Callable

import torch

from signalbox_worker.device.device_choice import streams_of
from signalbox_worker.kv.cache.host_pool import pinnable_bytes
from signalbox_worker.kv.cache.measured_device import (
    COPY_BYTES,
    NUM_COPIES,
    DeviceUse,
    HostDevice,
    MeasuredDevice,
)


class CudaDevice:
    """A device of PyTorch's, with its allocator."""

    type = "cuda"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __str__(self) -> str:
        return str(self._device)

    def use(self) -> DeviceUse:
        reserved = torch.cuda.memory_reserved(self._device)
        unused = reserved - torch.cuda.memory_allocated(self._device)
        return DeviceUse(reserved, unused, torch.cuda.mem_get_info(self._device)[1])

    def free_and_total(self) -> tuple[int, int]:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)

    def swap_bytes(self, wanted: int) -> int:
        return pinnable_bytes(wanted, streams_of(self._device))

    def peak_growth(self, work: Callable[[], object]) -> int:
        """Returns the growth of PyTorch's reserved memory, including gaps between its pieces."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_reserved(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device) - before

    def seconds(self, work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        torch.cuda.synchronize(self._device)
        return time.perf_counter() - start

    def copy_bytes_per_s(self) -> float:
        on_device = torch.ones(COPY_BYTES, dtype=torch.uint8, device=self._device)
        swap = torch.ones(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
        times = [self.seconds(lambda: swap.copy_(on_device)) for _ in range(NUM_COPIES)]
        return COPY_BYTES / statistics.median(times)


def measured(device: torch.device) -> MeasuredDevice:
    return CudaDevice(device) if device.type == "cuda" else HostDevice()

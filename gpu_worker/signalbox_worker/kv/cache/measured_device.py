"""Measures a device's memory and speed: first figures, which the scheduler refines."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from signalbox_worker.device.ram import available_ram, procfs_bytes

COPY_BYTES = 32 << 20
NUM_COPIES = 3
_STATUS = Path("/proc/self/status")


class DeviceUse(NamedTuple):
    """Memory of a device that this process holds, in bytes; see MemoryReport in worker.proto."""

    used: int
    unused: int
    total: int


class MeasuredDevice(Protocol):
    """A device whose memory and speed can be measured."""

    @property
    def type(self) -> str:
        """Returns "cpu" or "cuda"."""
        ...

    def use(self) -> DeviceUse: ...

    def peak_growth(self, work: Callable[[], object]) -> int:
        """Runs `work`; returns how far memory rose above where it was, in bytes."""
        ...

    def seconds(self, work: Callable[[], object]) -> float:
        """Runs `work`; returns how long that took."""
        ...

    def copy_bytes_per_s(self) -> float:
        """Copies from the device to swap memory a few times; returns the median rate."""
        ...

    def free_and_total(self) -> tuple[int, int]:
        """Returns bytes that no process uses, and all bytes."""
        ...

    def swap_bytes(self, wanted: int) -> int:
        """Returns how much of the wanted swap memory the device can be given."""
        ...


class HostDevice:
    """The CPU, whose memory is the machine's."""

    type = "cpu"

    def __str__(self) -> str:
        return self.type

    def use(self) -> DeviceUse:
        used = procfs_bytes("VmRSS", _STATUS)
        return DeviceUse(used, 0, used + available_ram())

    def free_and_total(self) -> tuple[int, int]:
        free = available_ram()
        return free, self.use().used + free

    def swap_bytes(self, wanted: int) -> int:
        return wanted

    def peak_growth(self, work: Callable[[], object]) -> int:
        before = procfs_bytes("VmRSS", _STATUS)
        _forget_peak()
        work()
        return max(0, procfs_bytes("VmHWM", _STATUS) - before)

    def seconds(self, work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def copy_bytes_per_s(self) -> float:
        # To new pages, as the system provides those of the pools when they are first written to:
        # that takes several times as long as the copy. In time on a processor, which a machine that
        # is busy at the start makes no longer: too low a rate may end all copies, and what would
        # correct it with them.
        pool = np.ones(COPY_BYTES, dtype=np.uint8)
        kept, times = [], []
        for _ in range(NUM_COPIES):
            start = time.thread_time()
            kept.append(pool.copy())
            times.append(time.thread_time() - start)
        return COPY_BYTES / statistics.median(times)


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the peak may then be an older one: an estimate on the safe side

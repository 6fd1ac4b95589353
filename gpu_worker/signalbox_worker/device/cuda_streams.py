"""Streams, events and pinned memory of a CUDA device; satisfies the protocols of `streams.py`.

Memory is pinned page by page, with cudaHostRegister: PyTorch's own pinned memory is rounded up to a
power of two, which takes up to twice the RAM (pytorch#150517).
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from signalbox_worker.device.streams import Event

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_REGISTER_PORTABLE = 1  # for every context, should a process use two devices


class CudaEvent:
    """A CUDA event that is recorded once, when it is made.

    A thread that waits for it sleeps; by default CUDA would keep a core busy until it is done.
    """

    def __init__(self, stream: torch.cuda.Stream, *, is_timed: bool) -> None:
        make: Any = torch.cuda.Event
        self.event: torch.cuda.Event = make(enable_timing=is_timed, blocking=True)
        self.event.record(stream)

    @property
    def is_done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()

    def ns_since(self, earlier: Event) -> int:
        assert isinstance(earlier, CudaEvent)
        return int(earlier.event.elapsed_time(self.event) * 1e6)


class CudaStream:
    """One stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def run(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def record(self, *, is_timed: bool = False) -> CudaEvent:
        return CudaEvent(self._stream, is_timed=is_timed)

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self._stream.wait_event(event.event)


class CudaStreams:
    """One device's. The stream that is current when this is made is the one that computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.compute = CudaStream(torch.cuda.current_stream(device))

    def new(self) -> CudaStream:
        return CudaStream(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    def pin(self, address: int, num_bytes: int) -> None:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._device):
            error = int(runtime.cudaHostRegister(address, num_bytes, _REGISTER_PORTABLE))
        if error:
            self._forget_error()
            raise MemoryError(f"CUDA cannot pin {num_bytes >> 20} MiB of RAM (error {error})")

    def unpin(self, address: int) -> None:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostUnregister(address))

    def numa_node(self) -> int | None:
        properties = torch.cuda.get_device_properties(self._device)
        names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
        domain, bus, slot = (getattr(properties, name, None) for name in names)
        if domain is None or bus is None or slot is None:
            return None  # a PyTorch that does not say
        return node_of(f"{domain:04x}:{bus:02x}:{slot:02x}.0")

    def _forget_error(self) -> None:
        """Clears the error that CUDA remembers; otherwise the next launch would report it."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)


def node_of(pci_address: str, devices: Path = _PCI_DEVICES) -> int | None:
    """Returns the NUMA node of a PCI device, as Linux knows it."""
    try:
        node = int((devices / pci_address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1 is "unknown"

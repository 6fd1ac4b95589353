"""Reports on a device for operators: backends, memory, and a profile of the next steps.

Imports no PyTorch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from signalbox_rpc.metrics.sample import Sample, gauge


class BackendInUse(NamedTuple):
    """The backend that does one part of a runner's work."""

    part: str
    backend: str
    is_last_resort: bool = False
    """True if it is PyTorch on a GPU because nothing faster can be used there."""

    def sample(self) -> Sample:
        return gauge(
            "worker_backend_info",
            "What does a part of the work; the last resort is PyTorch on a GPU; always 1.",
            1,
            part=self.part,
            backend=self.backend,
            last_resort=str(self.is_last_resort).lower(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Use of a worker's memory, in bytes."""

    weights: int
    kv: int
    swap: int
    adapters: int
    used: int
    unused: int
    total: int

    def parts(self, *, activations: int) -> tuple[tuple[str, str, int], ...]:
        """Returns name, meaning and bytes of each part."""
        return (
            ("weights", "weights, packed as they are used", self.weights),
            ("kv", "KV blocks, used or not", self.kv),
            ("swap", "swap space, in RAM", self.swap),
            ("adapters", "reserved for LoRA adapters, loaded or not", self.adapters),
            ("activations", "the largest step, beside these", activations),
            ("used", "held by the process; pages never written are not in RAM", self.used),
            ("unused", "of that unused: fragmentation", self.unused),
            ("total", "that it may use", self.total),
        )


class ProfileOptions(NamedTuple):
    """Options of a profile of the next steps."""

    duration_s: float
    record_shapes: bool = False
    with_stack: bool = False


class Recording(Protocol):
    """A profile that is being taken."""

    @property
    def kernel_ns(self) -> Mapping[str, int]:
        """Nanoseconds of all threads by kind of kernel, after `end`; empty if the trace says it."""
        ...

    def end(self) -> None:
        """Stops recording; to be called on the execution thread, where it began."""
        ...

    def chrome_trace(self) -> bytes:
        """Returns the recording, gzipped; on any thread."""
        ...

"""The interface of runners, and optional interfaces.

Every class that computes batches is a `Runner`: the model's, the simulated one, a group of ranks.
What only some can do is a protocol of its own, which the worker looks for with `isinstance`, so
that a new runner writes `Runner`'s calls and nothing else. `batch.py` has what goes in and out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from signalbox_contract.model import Adapter, ModelInfo, WorkerCapacity
from signalbox_contract.step import Step
from signalbox_worker.batch.adapter_slots import OpenedAdapter
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.kv_store.block_transfers import BlockTransfers


class Runner(Protocol):
    """Computes batches on one device and owns the KV cache there.

    All calls after construction come from the worker's one execution thread.
    """

    @property
    def model(self) -> ModelInfo: ...

    @property
    def transfers(self) -> BlockTransfers:
        """What transfers blocks of the CPU pool that `init_cache_engine` made last."""
        ...

    def tokenizer_files(self) -> dict[str, bytes]:
        """Returns "tokenizer.json" (tokenizers format) and "tokenizer_config.json"."""
        ...

    def profile(self) -> WorkerCapacity:
        """Measures what fits beside weights and activations. Raises MemoryError if nothing does."""
        ...

    def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Allocates both pools, dropping what was there, and binds `transfers` to them."""
        ...

    def apply(self, sections: Step) -> int:
        """Applies sections to the KV cache; the core of the step is empty.

        Returns the nanoseconds that this takes, beside the forward pass or not.
        """
        ...

    def execute(self, batch: Batch) -> BatchOutput:
        """Writes the batch's K and V, attends over the block tables, draws the rows."""
        ...


class Launched(Protocol):
    """A batch that a device is computing."""

    @property
    def can_feed(self) -> bool:
        """True if the next batch may refer to its samples (`Batch.fed_from`)."""
        ...

    def wait(self) -> None:
        """Blocks until the samples are there; safe from any thread."""
        ...

    def samples(self) -> BatchOutput:
        """Returns the drawn tokens; to be called on the execution thread."""
        ...


@runtime_checkable
class Launching(Protocol):
    """A runner that may begin a batch before the one before it has ended."""

    @property
    def launches(self) -> bool:
        """True if this runner launches; others only have `execute`."""
        ...

    def launch(self, batch: Batch) -> Launched:
        """Begins what `execute` does, without waiting; raises the errors that are known at once."""
        ...


class BackendInUse(NamedTuple):
    """The backend that does one part of a runner's work."""

    part: str
    backend: str
    is_last_resort: bool = False
    """True if it is PyTorch on a GPU because nothing faster can be used there."""


@runtime_checkable
class AdapterLoading(Protocol):
    """A runner that takes adapters after its start, and knows the slot of each."""

    @property
    def adapter_slots(self) -> Mapping[str, int]:
        """Slots by SHA-256; later changes show in it."""
        ...

    def open_adapter(self, name: str, folder: str) -> OpenedAdapter:
        """Reads and checks an adapter beside the steps, on any thread. Raises ModelError."""
        ...

    def add_adapter(self, opened: OpenedAdapter) -> None:
        """Lets later batches name an adapter; adding one again changes nothing."""
        ...

    def remove_adapter(self, adapter: Adapter) -> None:
        """Frees the slot of an adapter that no later batch names."""
        ...


@runtime_checkable
class Described(Protocol):
    """A runner that says what does its work."""

    @property
    def backends(self) -> tuple[BackendInUse, ...]: ...


@runtime_checkable
class Closeable(Protocol):
    """A runner with more to end than its memory, such as processes."""

    def close(self, failure: str | None = None) -> None:
        """Ends it; to be called after the last call, on any thread.

        Args:
            failure: why it ends before its time; processes then exit with a status other than 0.
        """
        ...


def close(runner: Runner, failure: str | None = None) -> None:
    """Ends what a runner has started; see `Closeable`."""
    if isinstance(runner, Closeable):
        runner.close(failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Use of a worker's memory, in bytes; see worker.proto."""

    weights: int
    kv: int
    swap: int
    adapters: int
    used: int
    unused: int
    total: int


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


@runtime_checkable
class Inspectable(Protocol):
    """A runner that reports time and memory; the simulated runner does not."""

    def memory(self) -> MemoryReport:
        """Safe from any thread."""
        ...

    def begin_recording(self, options: ProfileOptions) -> Recording: ...

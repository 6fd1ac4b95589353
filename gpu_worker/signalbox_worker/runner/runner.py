"""The interface of runners, which compute batches and own the KV cache there.

A lease calls `LocalRunner`, in this process, or `RankedRunner`, which makes each call in all
processes of the worker. What only some models can do has a default in `Executor`, so nothing asks
which runner it has. `batch.py` has what goes in and out.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from signalbox_contract.model import Adapter, ModelInfo, WorkerCapacity
from signalbox_contract.step import Step
from signalbox_worker.batch.adapter_slots import OpenedAdapter
from signalbox_worker.batch.batch import Batch, BatchOutput, Launched
from signalbox_worker.batch.state_runs import Settlement
from signalbox_worker.device.inspection import (
    BackendInUse,
    MemoryReport,
    ProfileOptions,
    Recording,
)
from signalbox_worker.drafts.proposer import NO_PROPOSER, Proposer
from signalbox_worker.kv.store.block_transfers import BlockTransfers


class Runner(ABC):
    """Computes batches; the worker's one execution thread makes all calls after construction,
    unless a method says otherwise."""

    transfers: BlockTransfers
    """Transfers of blocks of the CPU pool that `init_cache_engine` made last."""

    @property
    @abstractmethod
    def model(self) -> ModelInfo: ...

    @property
    @abstractmethod
    def backends(self) -> tuple[BackendInUse, ...]:
        """Backends that do the work."""

    @abstractmethod
    def tokenizer_files(self) -> dict[str, bytes]:
        """Returns "tokenizer.json" (tokenizers format) and "tokenizer_config.json"."""

    @abstractmethod
    def profile(self) -> WorkerCapacity:
        """Measures what fits beside weights and activations, and opens the store.

        Raises MemoryError if nothing fits.
        """

    @abstractmethod
    def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Allocates both pools, dropping what was there, and binds `transfers` to them."""

    @abstractmethod
    def apply(self, sections: Step) -> int:
        """Applies sections to the KV cache; the core of the step is empty.

        Returns the nanoseconds that this takes, beside the forward pass or not.
        """

    @abstractmethod
    def execute(self, batch: Batch) -> BatchOutput:
        """Writes the batch's K and V, attends over the block tables, draws the rows.

        Raises MemoryError where a smaller batch may do.
        """

    @abstractmethod
    def settle(self, settlement: Settlement) -> None:
        """Leaves the states behind accepted drafts of the batch that was executed last."""

    def make_proposer(self) -> Proposer:
        """Returns the source of drafts of a new lease."""
        return NO_PROPOSER

    @property
    @abstractmethod
    def launches(self) -> bool:
        """True if a batch may begin before the one before it has ended."""

    @abstractmethod
    def launch(self, batch: Batch) -> Launched:
        """Begins what `execute` does, without waiting; raises the errors that are known at once."""

    @property
    @abstractmethod
    def adapter_slots(self) -> Mapping[str, int]:
        """Slots of adapters by SHA-256; later changes show in it."""

    @abstractmethod
    def open_adapter(self, name: str, folder: str) -> OpenedAdapter:
        """Reads and checks an adapter beside the steps, on any thread. Raises ModelError."""

    @abstractmethod
    def add_adapter(self, opened: OpenedAdapter) -> None:
        """Lets later batches name an adapter; adding one again changes nothing."""

    @abstractmethod
    def remove_adapter(self, adapter: Adapter) -> None:
        """Frees the slot of an adapter that no later batch names."""

    @abstractmethod
    def memory(self) -> MemoryReport | None:
        """Returns the use of memory, on any thread; None if nothing is computed."""

    @abstractmethod
    def begin_recording(self, options: ProfileOptions) -> Recording:
        """Begins a profile. Raises Unimplemented if nothing is computed."""

    @abstractmethod
    def close(self, failure: str | None = None) -> None:
        """Ends what it has started beside its memory; comes after the last call, on any thread.

        Args:
            failure: why it ends before its time; processes then exit with a status other than 0.
        """

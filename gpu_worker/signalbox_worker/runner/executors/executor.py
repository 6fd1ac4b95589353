"""The interface of executors: each computes a runner's batches, in pools that it makes.

A `LocalRunner` owns the pools, the adapters' places in the model and the transfers; an executor has
the weights. What only some can do has a neutral default.
"""

from abc import ABC, abstractmethod
from typing import Any

from signalbox_contract.errors import Unimplemented
from signalbox_contract.model import ModelInfo
from signalbox_worker.batch.batch import Batch, BatchOutput, Launched
from signalbox_worker.batch.state_runs import Settlement
from signalbox_worker.device.inspection import BackendInUse, ProfileOptions, Recording
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.adapters.loaded_adapters import LoadedAdapters
from signalbox_worker.kv.cache.capacity import Footprint
from signalbox_worker.kv.cache.measured_device import MeasuredDevice
from signalbox_worker.kv.cache.pools import Pools


class Executor(ABC):
    """A model with its weights, and a sampler. Call from one thread."""

    model: ModelInfo
    """Model as it is at the start, without adapters of run time."""
    backends: tuple[BackendInUse, ...]
    """Backends that do the work."""
    layers: StageLayers
    """Layers that it has."""
    device: MeasuredDevice
    adapters: LoadedAdapters
    weights_bytes: int

    @property
    @abstractmethod
    def footprint(self) -> Footprint:
        """Memory that it takes in addition to its weights, without graphs."""

    @property
    def form(self) -> Any:
        """Values that the layout of blocks depends on; their text is compared."""
        return self.backends

    @abstractmethod
    def make_pools(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> Pools:
        """Returns new pools, in which it computes from now on. Raises MemoryError."""

    @abstractmethod
    def drop_pools(self) -> None:
        """Refers to no pools any more, which would stay in memory."""

    @abstractmethod
    def execute(self, batch: Batch) -> BatchOutput:
        """Raises MemoryError where a smaller batch may do, DeviceLost if another rank is lost.

        No MemoryError comes once states of recurrent layers have changed.
        """

    def settle(self, settlement: Settlement) -> None:
        """Leaves the states behind accepted drafts of the batch that was executed last."""
        raise NotImplementedError("this executor keeps no states")

    def execute_alone(self, batch: Batch) -> None:
        """Executes a batch without the other stages, if there are any."""
        self.execute(batch)

    def arithmetic(self, *, max_num_tokens: int) -> str:
        """Returns the digest of a fixed computation, in a pool of its own: executors of one model
        with equal digests compute equal bits. Empty if the bits depend on the batch.

        Args:
            max_num_tokens: most tokens of a step.

        Raises what `execute` does.
        """
        return ""

    @property
    def is_batch_invariant(self) -> bool:
        """True if the bits of a row are the same in every batch."""
        return False

    @property
    def launches(self) -> bool:
        """True if a batch may begin before the one before it has ended."""
        return False

    def launch(self, batch: Batch) -> Launched:
        """Begins what `execute` does, without waiting; raises the errors that are known at once."""
        raise NotImplementedError("this executor launches no batches")

    def measure_graphs(self) -> int:
        """Returns the bytes that graphs of steps will take beside all else."""
        return 0

    def prepare(self) -> None:  # noqa: B027  # most have nothing to prepare
        """Records graphs of steps over the pools that were made last, and compiles kernels."""

    @property
    def num_graphs(self) -> int:
        """Sizes of steps that are recorded."""
        return 0

    @property
    def num_collectives(self) -> int:
        """Collectives that this rank has joined."""
        return 0

    @property
    def collective_ns(self) -> int:
        """Nanoseconds in collectives so far; 0 where a device runs them beside the host."""
        return 0

    def abort_collectives(self) -> None:  # noqa: B027  # there are none on one rank
        """Ends the wait for ranks that are lost; safe from any thread."""

    def begin_recording(self, options: ProfileOptions) -> Recording:
        """Begins a profile. Raises Unimplemented if nothing is computed."""
        raise Unimplemented("a simulated worker computes nothing that could be profiled")

"""A runner of this process, which may hold a rank's share of a model."""

from abc import abstractmethod

from signalbox_worker.batch.stage_layers import StageLayers
from signalbox_worker.device.inspection import MemoryReport
from signalbox_worker.kv_store.pool_transfers import PoolTransfers
from signalbox_worker.loading.block_content import BlockContent
from signalbox_worker.runner.runner import Runner


class LocalRunner(Runner):
    """What `RankedRunner` asks of a rank's share, too."""

    transfers: PoolTransfers
    layers: StageLayers
    """Layers of this rank's stage."""

    @property
    @abstractmethod
    def num_graphs(self) -> int:
        """Sizes of steps that are recorded."""

    @property
    @abstractmethod
    def num_collectives(self) -> int:
        """Collectives that this rank has joined."""

    @property
    @abstractmethod
    def collective_ns(self) -> int:
        """Nanoseconds in collectives so far; 0 where a device runs them beside the host."""

    @abstractmethod
    def abort_collectives(self) -> None:
        """Ends the wait for ranks that are lost; safe from any thread."""

    @abstractmethod
    def block_content(self) -> BlockContent:
        """Returns what the rank's KV blocks depend on beside their tokens."""

    @abstractmethod
    def memory(self) -> MemoryReport: ...

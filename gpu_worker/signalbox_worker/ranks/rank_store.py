"""Opens the store of a rank: on a disk of its host, or on a server.

Each rank has a store of its own, whose blocks are those of its share.
"""

from typing import Protocol

from signalbox_contract.model import ModelInfo, StoreCapacity
from signalbox_worker.kv_store.store_threads import StoreThreads
from signalbox_worker.loading.block_content import BlockContent
from signalbox_worker.ranks.service.rank_messages import Start
from signalbox_worker.store_config import STORE_WRITE_BYTES_PER_S, DiskConfig, SharedConfig


class HasBlocks(Protocol):
    """A share of a model that is loaded."""

    @property
    def model(self) -> ModelInfo: ...

    def block_content(self) -> BlockContent: ...


def check_store(disk: DiskConfig, shared: SharedConfig) -> None:
    """Refuses a folder, a server, or a file for it, that cannot be used; comes before a model is
    loaded.

    Raises ModelError, ValueError or OSError.
    """
    if disk.kv_disk is not None:
        from signalbox_worker.kv_disk.store_folder import StoreFolder

        StoreFolder(disk.kv_disk).close()
    if shared.kv_store is not None:
        from signalbox_worker.kv_shared.shared_tier import check_config

        check_config(shared)


def has_store(start: Start) -> bool:
    """Says whether the settings name a store."""
    return start.disk.kv_disk is not None or start.shared.kv_store is not None


def open_store(start: Start, share: HasBlocks) -> StoreThreads:
    """Opens the store that the settings name. Raises FolderError, SecretFileError or OSError."""
    num_ranks = start.parallel.num_ranks
    if start.disk.kv_disk is not None:
        return _on_disk(share, start.disk, num_ranks)
    return _on_server(share, start.shared, num_ranks)


def _on_disk(share: HasBlocks, config: DiskConfig, num_ranks: int) -> StoreThreads:
    from signalbox_worker.kv_disk.disk_tier import DiskTier  # others load no SQLite

    content = share.block_content()
    tier = DiskTier(
        config,
        block_bytes=content.block_bytes,
        model=share.model.name,
        identify=content.identity,
        num_ranks=num_ranks,
    )
    return StoreThreads(tier, tier.capacity)


def _on_server(share: HasBlocks, config: SharedConfig, num_ranks: int) -> StoreThreads:
    from signalbox_worker.kv_shared.shared_tier import SharedTier

    content = share.block_content()
    tier = SharedTier(config, block_bytes=content.block_bytes, identify=content.identity)
    max_bytes_per_s = STORE_WRITE_BYTES_PER_S // num_ranks
    return StoreThreads(tier, StoreCapacity(kind="shared", max_write_bytes_per_s=max_bytes_per_s))

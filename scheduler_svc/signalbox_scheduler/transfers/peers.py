"""One worker as those see it that read its blocks instead of computing them, and that it reads.

The scheduler knows which worker has which block, so that no worker is asked.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from signalbox_rpc.metrics.sample import Sample
from signalbox_scheduler.config import PeerIdentity, WorkerConfig
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.transfers.block_exports import (
    BlockExports,
    TransferEndpoint,
    most_exported,
)
from signalbox_scheduler.transfers.peer_reads import PeerReads


class TransferPeer:
    """One worker: what it exports to others, and what it reads of them.

    Args:
        exports: those of all workers of the cluster.
    """

    def __init__(
        self,
        endpoint: TransferEndpoint,
        exports: Collection[BlockExports],
        *,
        blocks: BlockSpaceManager,
    ) -> None:
        self.endpoint = endpoint
        self.exports = BlockExports(endpoint, blocks=blocks)
        self.reads = PeerReads(endpoint, exports, blocks=blocks)

    def samples(self) -> Iterator[Sample]:
        return self.reads.counts.samples(tier="peer", num_bytes_out=self.exports.num_bytes)


def peer_identity(config: WorkerConfig) -> PeerIdentity:
    """Returns the identity of a worker; without a format of blocks if its CPU pool exports none."""
    if config.cache.has_cpu_cache and most_exported(config.cache.num_cpu_blocks):
        return config.identity
    return replace(config.identity, kv_format="")

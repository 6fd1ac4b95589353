"""The workers of a cluster that read each other's blocks instead of computing them.

The scheduler knows which worker has which block, so that no worker is asked.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from signalbox_rpc.metrics.sample import Sample
from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv_moves.block_exports import BlockExports, TransferEndpoint
from signalbox_scheduler.kv_moves.distrusted_blocks import DistrustedBlocks
from signalbox_scheduler.kv_moves.peer_reads import PeerReads


class TransferPeer:
    """One worker: what it lends to others, and what it reads of them.

    Args:
        peers: all workers of the cluster that lend.
    """

    def __init__(
        self, endpoint: TransferEndpoint, peers: "Peers", *, blocks: BlockSpaceManager
    ) -> None:
        self.endpoint = endpoint
        self.exports = BlockExports(endpoint, blocks=blocks)
        self.reads = PeerReads(endpoint, peers.exports, blocks=blocks)
        self._peers = peers

    def samples(self) -> Iterator[Sample]:
        return self.reads.counts.samples(tier="peer", num_bytes_out=self.exports.num_bytes)

    def can_read(self, other: "TransferPeer") -> bool:
        """Says whether another worker's blocks have the same bytes as this one's."""
        return self.endpoint.can_read(other.endpoint)

    def retract(self, block_hash: BlockHash, now: float) -> None:
        """Takes a block back that went wrong here, wherever it is on its way or has arrived."""
        self.exports.take_back(block_hash, now)
        for reader in self._peers.members:
            reader.reads.lose(block_hash, self.exports, now)


@dataclass(slots=True)
class Peers:
    """The workers of the cluster that may lend to each other, in the order in which they joined."""

    members: list[TransferPeer] = field(default_factory=list)
    exports: list[BlockExports] = field(default_factory=list)
    """Those of the members."""
    distrusted: DistrustedBlocks = field(default_factory=DistrustedBlocks)
    """Blocks that no worker fetches from a store."""

    def join(self, peer: TransferPeer) -> None:
        self.members.append(peer)
        self.exports.append(peer.exports)

    def leave(self, peer: TransferPeer, now: float) -> None:
        """Takes a worker out, whose moves end with it."""
        self.members.remove(peer)
        self.exports.remove(peer.exports)
        peer.exports.leave(now)
        peer.reads.leave(now)
        for other in self.members:
            other.reads.forget(peer.exports)

"""The workers of a cluster that read each other's blocks instead of computing them.

The scheduler knows which worker has which block, so that no worker is asked. What goes from one to
another is a lend of its owner and a fetch of its reader; the end of either ends the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.kv_moves.block_exports import BlockExports
from signalbox_scheduler.kv_moves.distrusted_blocks import DistrustedBlocks
from signalbox_scheduler.kv_moves.moves_under_way import MovesUnderWay
from signalbox_scheduler.kv_moves.peer_reads import PeerReads
from signalbox_scheduler.planning.steps_in_flight import StepsInFlight


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """Address and name of a worker, for workers that read its blocks."""

    address: str
    certified_name: str = ""
    """Name in its certificate; empty if the scheduler is shown none."""
    epoch: int
    kv_format: str
    """Equal of workers that can read each other's blocks."""


class Peer:
    """One worker: what it lends to others, and what it reads of them.

    Args:
        peers: all workers of the cluster that lend.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        peers: "Peers",
        *,
        blocks: BlockSpaceManager,
        moves: MovesUnderWay,
        inflight: StepsInFlight,
        cost: CostModel,
    ) -> None:
        self.identity = identity
        self.inflight = inflight
        """Steps that the worker computes before the one that lends what is wanted now."""
        self.cost = cost
        self.wake: Callable[[], None] = lambda: None
        """Makes the worker's driver plan."""
        self.exports = BlockExports(self, blocks=blocks, moves=moves)
        self.reads = PeerReads(self, peers, blocks=blocks, moves=moves)
        self._peers = peers

    def can_read(self, other: "Peer") -> bool:
        """Says whether another worker's blocks have the same bytes as this one's."""
        return other is not self and other.identity.kv_format == self.identity.kv_format

    def retract(self, block_hash: BlockHash, now: float) -> None:
        """Takes a block back that went wrong here, wherever it is on its way or has arrived."""
        self.exports.take_back(block_hash, now)
        for reader in self._peers.members:
            reader.reads.lose(block_hash, self, now)


@dataclass(slots=True)
class Peers:
    """The workers of the cluster that may lend to each other, in the order in which they joined."""

    members: list[Peer] = field(default_factory=list)
    distrusted: DistrustedBlocks = field(default_factory=DistrustedBlocks)
    """Blocks that no worker fetches from a store."""

    def join(self, peer: Peer) -> None:
        self.members.append(peer)

    def leave(self, peer: Peer, now: float) -> None:
        """Takes a worker out, whose moves end with it."""
        self.members.remove(peer)
        peer.exports.leave(now)
        peer.reads.leave(now)
        for other in self.members:
            other.reads.forget(peer)

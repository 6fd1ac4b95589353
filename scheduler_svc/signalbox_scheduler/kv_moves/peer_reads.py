"""Blocks that a worker reads of others of the cluster instead of computing them.

A fetch is a move of its reader's pool. It has bounds of its own and waits for nothing: what does
not arrive is computed.
"""

import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from signalbox_contract.sections.store_moves import BlockSource, MoveResult
from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.kv_moves.fetch_cost import FetchCost
from signalbox_scheduler.kv_moves.fetch_counts import FetchCounts
from signalbox_scheduler.kv_moves.moves_under_way import Move, MovesUnderWay

if TYPE_CHECKING:
    from signalbox_scheduler.kv_moves.peers import Peer, PeerIdentity, Peers

MAX_ORIGINS = 1 << 16
"""Blocks whose origin a worker remembers at most."""
PAUSE_S = 10.0
"""Time for which a worker reads nothing of one from which a fetch has failed or come late, or of a
store that was late."""

_NONE: Mapping[BlockHash, int] = MappingProxyType({})


@dataclass(slots=True, eq=False, kw_only=True)
class PeerFetch:
    """Blocks on their way from one worker to another."""

    owner: "Peer"
    reader: "Peer"
    source: BlockSource
    fetch: Move
    ahead: Hold
    """Blocks of the owner's CPU pool with copies of what comes after the lend, for the next."""
    private: Mapping[BlockHash, int]
    """GPU blocks of the owner that nothing finds, by names of what they hold."""
    is_urgent: bool = True
    """False if steps of the owner are to copy little for it."""
    lend: Move | None = None
    """None until the owner's next plan."""

    @property
    def is_read(self) -> bool:
        """False once the fetch has ended, so that the lend is about to end, too."""
        return self.reader.reads.awaits(self.fetch)

    @property
    def goes_on(self) -> bool:
        """True if the blocks are being read, and neither move was called off."""
        moves = (self.fetch, self.lend)
        return self.is_read and all(one is None or one.cancelled_at is None for one in moves)


class PeerReads:
    """The fetches of one worker, and from which worker its blocks came."""

    def __init__(
        self, peer: "Peer", peers: "Peers", *, blocks: BlockSpaceManager, moves: MovesUnderWay
    ) -> None:
        self.counts = FetchCounts()
        self._peer_ref = weakref.ref(peer)
        self._peers = peers
        self._fetch_cost = FetchCost(peer.cost, block_size=blocks.block_size, from_peers=True)
        self._blocks = blocks
        self._moves = moves
        self._fetches: dict[Move, PeerFetch] = {}
        self._paused: dict[Peer, float] = {}
        self._origins: OrderedDict[BlockHash, PeerIdentity] = OrderedDict()
        """Workers whose blocks this worker read, least recent first."""

    @property
    def _peer(self) -> "Peer":
        peer = self._peer_ref()
        assert peer is not None, "it has this object"
        return peer

    @property
    def num_fetches(self) -> int:
        """Fetches from other workers that have not ended."""
        return len(self._fetches)

    @property
    def has_peers(self) -> bool:
        """True if there is another worker whose blocks this one can read."""
        return any(self._peer.can_read(other) for other in self._peers.members)

    def find(self, hashes: Sequence[BlockHash], now: float) -> "tuple[Peer, int] | None":
        """Returns the worker that has most of the first of these blocks, and how many."""
        best: tuple[Peer, int] | None = None
        for other in self._peers.members:
            if self._peer.can_read(other) and not self.avoids(other, now):
                num_blocks = other.exports.num_found(hashes)
                if num_blocks > (best[1] if best else 0):
                    best = other, num_blocks
        return best

    def fetch_if_paying(
        self, hashes: Sequence[BlockHash], now: float, *, most: int
    ) -> tuple[Move, float] | None:
        """Returns a fetch of the first of some blocks, and the time at which it should have ended;
        None if none pays.

        Args:
            most: blocks that it may bring.
        """
        if (found := self.find(hashes, now)) is None:
            return None
        owner, num_found = found
        num_blocks = min(num_found, most)
        wait_s = owner.inflight.expected_s()
        load_s = self._fetch_cost.predict(num_blocks, now, wait_s=wait_s)
        if num_blocks < 1 or load_s is None:
            return None
        self._fetch_cost.begin(now)
        self.counts.num_queries += num_blocks * self._blocks.block_size
        until = now + self._fetch_cost.longest_s(num_blocks, load_s)
        return self.fetch(owner, hashes[:num_blocks], now), until

    def fetch(
        self,
        owner: "Peer",
        hashes: Sequence[BlockHash],
        now: float,
        *,
        private: Mapping[BlockHash, int] = _NONE,
        is_urgent: bool = True,
    ) -> Move:
        """Begins to read blocks of another worker; ask the CPU pool's `num_free` first.

        Args:
            private: GPU blocks of the owner that nothing finds, by name; the caller calls the fetch
                off when they become others'.
            is_urgent: see `PeerFetch`.
        """
        source = owner.exports.make_source(self._peer.identity)
        move = self._moves.fetch(hashes, now, source=source)
        pair = PeerFetch(
            owner=owner,
            reader=self._peer,
            source=source,
            fetch=move,
            private=private,
            ahead=owner.exports.make_hold(),
            is_urgent=is_urgent,
        )
        self._fetches[move] = pair
        owner.exports.want(pair)
        return move

    def fetched(self, move: Move, result: MoveResult, now: float) -> bool:
        """Takes the end of a fetch; False if it was not from another worker."""
        pair = self._fetches.pop(move, None)
        if pair is None:
            return False
        pair.ahead.release()
        if pair.lend is None or result.num_blocks < len(pair.lend.hashes):
            pair.owner.exports.give_up(pair, now)
        if result.failed and move.cancelled_at is None:
            self._pause(pair.owner, now)
        for block_hash in () if move.is_void else move.hashes[: result.num_blocks]:
            self._origins[block_hash] = pair.owner.identity
            self._origins.move_to_end(block_hash)
        while len(self._origins) > MAX_ORIGINS:
            self._origins.popitem(last=False)
        return True

    def awaits(self, move: Move) -> bool:
        """Says whether a fetch from another worker has not ended."""
        return move in self._fetches

    def cancel(self, move: Move, now: float) -> None:
        """Calls a fetch off, and what is lent for it."""
        if (pair := self._fetches.get(move)) is not None:
            pair.owner.exports.give_up(pair, now)
            self.call_off(pair, now)

    def came_late(self, move: Move, now: float) -> bool:
        """Counts a fetch that took too long; False if it is from no other worker."""
        pair = self._fetches.get(move)
        if pair is not None:
            self.counts.num_late += 1
            self._pause(pair.owner, now)
        return pair is not None

    def _pause(self, owner: "Peer", now: float) -> None:
        """Leaves a worker alone for a while."""
        if owner in self._peers.members:
            self._paused[owner] = now + PAUSE_S

    def avoids(self, other: "Peer", now: float) -> bool:
        """Says whether a fetch from another worker has just failed or come late."""
        return now < self._paused.get(other, now)

    def call_off(self, pair: PeerFetch, now: float) -> None:
        """Ends a fetch that nothing is lent for; a no-op if it has ended."""
        if pair.fetch in self._fetches:
            self._moves.cancel(pair.fetch, now)
            self._peer.wake()

    def lose(self, block_hash: BlockHash, owner: "Peer", now: float) -> None:
        """Forgets a block that came, or comes, from a worker where it went wrong."""
        for move, pair in self._fetches.items():
            if pair.owner is owner and block_hash in move.hashes:
                move.is_void = True
                self.call_off(pair, now)
        if self._origins.get(block_hash) is owner.identity:
            del self._origins[block_hash]
            self._blocks.forget(block_hash)

    def forget(self, other: "Peer") -> None:
        """Forgets a worker that is gone."""
        self._paused.pop(other, None)

    def leave(self, now: float) -> None:
        """Ends what others lend for this worker, which is gone."""
        for pair in self._fetches.values():
            pair.owner.exports.give_up(pair, now)
        self._fetches.clear()

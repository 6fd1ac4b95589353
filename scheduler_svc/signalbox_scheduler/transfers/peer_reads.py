"""Blocks that a worker reads of others of the cluster instead of computing them.

A fetch is a transfer of its reader's pool. It has bounds of its own and waits for nothing: what
does not arrive is computed."""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from signalbox_contract.sections.store_moves import MoveResult
from signalbox_scheduler.config import PeerIdentity
from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.transfers.block_exports import BlockExports, PeerFetch, TransferEndpoint
from signalbox_scheduler.transfers.fetch_cost import FetchCost
from signalbox_scheduler.transfers.fetch_counts import FetchCounts
from signalbox_scheduler.transfers.pending_transfers import Transfer
from signalbox_scheduler.transfers.prefix_part import PrefixPart

MAX_ORIGINS = 1 << 16
"""Blocks whose origin a worker remembers at most."""
PAUSE_S = 10.0
"""Time for which a worker reads nothing of one from which a fetch has failed or come late, or of a
store that was late."""

_NONE: Mapping[BlockHash, int] = MappingProxyType({})


class PaidFetch(NamedTuple):
    """A fetch that takes less time than to compute."""

    transfer: Transfer
    part: PrefixPart
    """The part of a prefix that it brings."""
    until: float
    """Time at which it should have ended."""


class PeerReads:
    """The fetches of one worker, and from which worker its blocks came.

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
        self.counts = FetchCounts()
        self._endpoint = endpoint
        self._exports = exports
        self._fetch_cost = FetchCost(endpoint.cost, from_peers=True)
        self._blocks = blocks
        self._transfers = endpoint.transfers
        self._fetches: dict[Transfer, PeerFetch] = {}
        self._paused: dict[BlockExports, float] = {}
        self._origins: OrderedDict[BlockHash, PeerIdentity] = OrderedDict()
        """Workers whose blocks this worker read, least recent first."""

    @property
    def has_peers(self) -> bool:
        """True if there is another worker whose blocks this one can read."""
        return any(self._endpoint.can_read(other.endpoint) for other in self._exports)

    def find(self, wanted: PrefixPart, now: float) -> tuple[BlockExports, PrefixPart] | None:
        """Returns the worker that exports most of what is wanted, and how much that is."""
        best: tuple[BlockExports, PrefixPart] | None = None
        for other in self._exports:
            if self._endpoint.can_read(other.endpoint) and not self.avoids(other, now):
                part = wanted.longest(other.has)
                if part.end > (best[1].end if best else wanted.start):
                    best = other, part
        return best

    def fetch_if_paying(
        self, owner: BlockExports, part: PrefixPart, now: float, *, most: int
    ) -> PaidFetch | None:
        """Returns a fetch of what `find` has found; None if none pays.

        Args:
            most: blocks that it may bring.
        """
        part = part.within(most).longest(owner.has)
        num_blocks, num_tokens = part.num_blocks, part.num_tokens
        wait_s = owner.endpoint.inflight.expected_s()
        load_s = self._fetch_cost.predict(num_blocks, now, num_tokens=num_tokens, wait_s=wait_s)
        if not 0 < num_blocks <= most or load_s is None:
            return None
        self._fetch_cost.begin(now)
        self.counts.num_queries += num_tokens
        until = now + self._fetch_cost.longest_s(num_tokens, load_s)
        return PaidFetch(self.fetch(owner, part.names, now, sizes=part.sizes), part, until)

    def fetch(
        self,
        owner: BlockExports,
        hashes: Sequence[BlockHash],
        now: float,
        *,
        sizes: Sequence[int] = (),
        private: Mapping[BlockHash, int] = _NONE,
        is_urgent: bool = True,
    ) -> Transfer:
        """Begins to read blocks of another worker; ask the CPU pool's `num_free` first.

        Args:
            sizes: blocks of each; empty if none is of a state.
            private: GPU blocks of the owner that nothing finds, by name; the caller calls the fetch
                off when they become others'.
            is_urgent: see `PeerFetch`.
        """
        source = owner.make_source(self._endpoint.identity)
        transfer = self._transfers.fetch(hashes, now, sizes=sizes, source=source)
        pair = PeerFetch(
            owner=owner,
            reader=self._endpoint,
            source=source,
            fetch=transfer,
            private=private,
            ahead=owner.make_hold(),
            is_urgent=is_urgent,
        )
        self._fetches[transfer] = pair
        owner.want(pair)
        return transfer

    def fetched(self, transfer: Transfer, result: MoveResult, now: float) -> bool:
        """Takes the end of a fetch; False if it was not from another worker."""
        pair = self._fetches.pop(transfer, None)
        if pair is None:
            return False
        pair.is_read = False
        pair.ahead.release()
        if pair.export is None or result.num_blocks < len(pair.export.hashes):
            pair.owner.give_up(pair, now)
        if result.failed and transfer.cancelled_at is None:
            self._pause(pair.owner, now)
        for block_hash in () if transfer.is_void else transfer.hashes[: result.num_blocks]:
            self._origins[block_hash] = pair.owner.endpoint.identity
            self._origins.move_to_end(block_hash)
        while len(self._origins) > MAX_ORIGINS:
            self._origins.popitem(last=False)
        return True

    def cancel(self, transfer: Transfer, now: float) -> None:
        """Calls a fetch off, and what is exported for it."""
        if (pair := self._fetches.get(transfer)) is not None:
            pair.owner.give_up(pair, now)
            pair.call_off(now)

    def came_late(self, transfer: Transfer, now: float) -> bool:
        """Counts a fetch that took too long; False if it is from no other worker."""
        pair = self._fetches.get(transfer)
        if pair is not None:
            self.counts.num_late += 1
            self._pause(pair.owner, now)
        return pair is not None

    def _pause(self, owner: BlockExports, now: float) -> None:
        """Leaves a worker alone for a while."""
        if owner in self._exports:
            self._paused[owner] = now + PAUSE_S

    def avoids(self, other: BlockExports, now: float) -> bool:
        """Says whether a fetch from another worker has just failed or come late."""
        return now < self._paused.get(other, now)

    def lose(self, block_hash: BlockHash, owner: BlockExports, now: float) -> bool:
        """Forgets a block that came, or comes, from a worker where it went wrong.

        Returns whether it had come.
        """
        for transfer, pair in self._fetches.items():
            if pair.owner is owner and block_hash in transfer.hashes:
                transfer.is_void = True
                pair.call_off(now)
        if self._origins.get(block_hash) is not owner.endpoint.identity:
            return False
        del self._origins[block_hash]
        self._blocks.forget(block_hash)
        return True

    def forget(self, other: BlockExports) -> None:
        self._paused.pop(other, None)

    def leave(self, now: float) -> None:
        """Ends what others export for this worker, which is gone."""
        for pair in self._fetches.values():
            pair.owner.give_up(pair, now)
            pair.is_read = False
        self._fetches.clear()

"""Brings prefixes of waiting requests from a worker's store, or a peer, into its CPU pool.

A request whose prefix may go on in the store, or on another worker, leaves the admission queue for
the time of a lookup and a fetch. What has arrived is a prefix of the CPU pool's cache like any
other, pinned for the request until a worker takes it; the request is back in the queue, at its
place. So a lookup or fetch that fails, comes late or is called off is a miss: tokens are computed.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from signalbox_contract.sections.store_moves import MoveResult
from signalbox_scheduler.kv.block_allocator import BlockHash, HoldKind
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.kv.prefix_cache import FoundBlock
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.transfers.distrusted_blocks import DistrustedBlocks
from signalbox_scheduler.transfers.fetch_cost import FetchCost
from signalbox_scheduler.transfers.fetch_counts import FetchCounts
from signalbox_scheduler.transfers.peer_reads import PAUSE_S, PeerReads
from signalbox_scheduler.transfers.pending_transfers import PendingTransfers, Transfer, TransferKind
from signalbox_scheduler.transfers.prefix_lookup import PrefixLookup
from signalbox_scheduler.transfers.prefix_part import PrefixPart

MAX_LOADING = 8
"""Requests of a worker that may load at once."""
LOOK_AHEAD = 16
"""Requests at the head of the queue among which some are chosen to load."""
GRACE_S = 0.25
"""Time that a lookup may take, and a fetch beyond twice what it should take, if that is known; and
the end of a fetch that is called off as late."""
MAX_FETCHED_SHARE = 0.5
"""Most of the CPU pool that fetches, and what they brought for requests that wait, may hold."""

_loaders = itertools.count(1)


@dataclass(slots=True, eq=False, kw_only=True)
class _Load:
    """Move and deadline of a loading request."""

    transfer: Transfer
    """Several requests may wait for one."""
    until: float
    """Time at which the request gives up."""
    held: Hold
    """Blocks of the CPU pool with the part of its prefix that was there before."""
    arrived: Hold
    """Blocks that fetches have brought for it."""


class PrefixLoader:
    """The loading requests of one worker, and the blocks that have arrived for waiting ones.

    Args:
        peer_reads: what the worker reads of others.
        distrusted: blocks that are not fetched from the store.
    """

    def __init__(
        self,
        state: SchedulerState,
        transfers: PendingTransfers,
        peer_reads: PeerReads,
        *,
        distrusted: DistrustedBlocks,
    ) -> None:
        store = state.config.store
        self.counts = FetchCounts()
        """Counts of fetches from the store."""
        self.avoids_store = False
        """True if nothing is taken from the store, since audits found blocks of it wrong."""
        self._queues = state.queues
        self._blocks = state.blocks
        self._pool = state.blocks.cpu
        self._transfers = transfers
        self._selection = state.selection
        self._suspects = state.suspects
        self._store_cost = FetchCost(state.cost, from_peers=False)
        self._paused_until = -math.inf  # because the store did not answer in time
        self._store_kind = "" if store is None else store.kind
        self._peer_reads = peer_reads
        self._number = next(_loaders)
        self._loads: dict[SequenceGroup, _Load] = {}
        self._lookups: dict[Transfer, PrefixLookup] = {}
        self._fetches: dict[Transfer, PrefixPart] = {}
        """Parts that fetches bring which have not ended."""
        self._distrusted = distrusted

    # Planning

    def plan(self, now: float) -> None:
        """Gives up what has left or is late, and lets requests of the queue begin to load.

        None begins where a suspect is, whose steps move nothing.
        """
        for group, load in list(self._loads.items()):
            if group not in self._queues.loading:
                self._return(group, now)
            elif now >= load.until:
                self._give_up(group, load, now)
        if self._queues.takes_new and self._queues.admission.groups and not self._suspects.has_any:
            self._begin_loads(now)

    def _give_up(self, group: SequenceGroup, load: _Load, now: float) -> None:
        """Calls a fetch that is late off, whose end says what has arrived; returns a request that
        waits for a lookup, or for that end for too long."""
        if load.transfer.cancelled_at is not None:
            self._return(group, now)
            return
        self._count_late(load.transfer, now)
        if load.transfer.kind is not TransferKind.FETCH:
            self._return(group, now)
            return
        self._transfers.cancel(load.transfer, now)
        for other in self._loads.values():
            if other.transfer is load.transfer:
                other.until = now + GRACE_S

    def _count_late(self, transfer: Transfer, now: float) -> None:
        if not self._peer_reads.came_late(transfer, now):
            self.counts.num_late += 1
            self._paused_until = now + PAUSE_S

    def _begin_loads(self, now: float) -> None:
        is_full = len(self._loads) >= MAX_LOADING
        if is_full or not (self._store_kind or self._peer_reads.has_peers):
            return
        waiting = itertools.islice(self._queues.admission.candidates, LOOK_AHEAD)
        # A group that needs no load takes no place: an idle worker is not woken for the next ones.
        for group in [group for group in waiting if self._may_load(group)]:
            if len(self._loads) >= MAX_LOADING:
                return
            self._begin(group, now)

    def _may_load(self, group: SequenceGroup) -> bool:
        if self._number in group.asked_stores or group.suspicion is not None:
            return False
        if group.wants_prompt_logprobs or group in self._queues.admission.prefixes:
            return False
        if not self._selection.can_ever_run(group):
            return False
        return bool(self._store_kind) or self._selection.has_room(group)

    def _begin(self, group: SequenceGroup, now: float) -> None:
        """Fetches what is missing of a request's prefix from another worker, if one has it; else
        looks it up in the store, once, unless it costs little."""
        prefix = self._blocks.find_prefix(group.unfinished[0])
        wanted = self._wanted(group, len(prefix) // self._blocks.num_groups)
        if other := self._load_of(wanted):
            self._wait_for(group, other.transfer, now, until=other.until, held=self._hold([]))
            return
        if self._begin_from_peer(group, prefix, wanted, now) or not self._store_kind:
            return
        group.asked_stores = (*group.asked_stores, self._number)
        lookup = PrefixLookup(wanted, may_come=self._is_trusted)
        if not lookup.names or now < self._paused_until or self._transfers.is_clearing:
            return
        if self._predict(lookup.part, now) is not None:
            self.counts.num_queries += lookup.part.num_tokens
            transfer = self._look_up(lookup, now)
            self._wait_for(group, transfer, now, until=now + GRACE_S, held=self._hold(prefix))

    def _wanted(self, group: SequenceGroup, num_rows: int) -> PrefixPart:
        """Returns what is missing of a request's prefix, of which so many rows are here."""
        seq, blocks = group.unfinished[0], self._blocks
        end = (seq.num_tokens - 1) // blocks.block_size
        return PrefixPart(blocks, seq, start=num_rows, end=end).within(self._most_fetched)

    def _look_up(self, lookup: PrefixLookup, now: float) -> Transfer:
        transfer = self._transfers.find(lookup.names, now, sizes=lookup.sizes, seeks=lookup.seeks)
        self._lookups[transfer] = lookup
        return transfer

    def _predict(self, part: PrefixPart, now: float) -> float | None:
        return self._store_cost.predict(part.num_blocks, now, num_tokens=part.num_tokens)

    def _begin_from_peer(
        self, group: SequenceGroup, prefix: list[FoundBlock], wanted: PrefixPart, now: float
    ) -> bool:
        """Fetches blocks that another worker has, if that pays; returns whether it does.

        A request that has no room here yet stays where that worker may take it.

        Args:
            prefix: what is here of the request's prefix.
            wanted: what comes after it.
        """
        reads = self._peer_reads
        if not self._selection.has_room(group) or (found := reads.find(wanted, now)) is None:
            return False
        held = self._hold(prefix)  # before the fetch takes blocks, which might be these
        if (fetch := reads.fetch_if_paying(*found, now, most=self._num_fetchable)) is None:
            held.release()
            return False
        group.asked_stores = (*group.asked_stores, self._number)
        self._fetches[fetch.transfer] = fetch.part
        self._wait_for(group, fetch.transfer, now, until=fetch.until + GRACE_S, held=held)
        return True

    def _hold(self, prefix: list[FoundBlock]) -> Hold:
        """Returns a hold of the blocks of a prefix that the CPU pool has."""
        held = Hold(self._pool, kind=HoldKind.PREFIX)
        held.share(found.block for found in prefix if not found.is_on_gpu)
        return held

    def _load_of(self, wanted: PrefixPart) -> _Load | None:
        """Returns a request's wait for the first entry that is wanted."""
        first, loads = wanted.first_name, self._loads.values()
        return next((load for load in loads if first in self._names_of(load.transfer)), None)

    def _names_of(self, transfer: Transfer) -> Sequence[BlockHash]:
        lookup = self._lookups.get(transfer)
        return transfer.hashes if lookup is None else lookup.first_names

    def _wait_for(
        self, group: SequenceGroup, transfer: Transfer, now: float, *, until: float, held: Hold
    ) -> None:
        group.timeline.loading(self._queues.admission.waits, now)
        self._queues.load(group)
        self._loads[group] = _Load(
            transfer=transfer, until=until, held=held, arrived=self._hold([])
        )

    def _is_trusted(self, block_hash: BlockHash) -> bool:
        """Says whether a block may come from the store."""
        return not self.avoids_store and block_hash not in self._distrusted

    # Results

    def found(self, transfer: Transfer, result: MoveResult, now: float) -> None:
        """Takes the end of a lookup: asks for what windows need, or fetches, if that pays."""
        self.counts.add_failure(transfer, result)
        lookup, waiting = self._lookups.pop(transfer), self._waiting_for(transfer)
        is_open = lookup.found(result.num_blocks, most=self._num_fetchable)
        part, load_s = lookup.part, self._predict(lookup.part, now)
        ends_here = transfer.is_void or (is_open and result.failed)
        if ends_here or not part.num_names or load_s is None:
            for group in waiting:
                self._return(group, now)
        elif waiting and is_open:
            self._wait_on(waiting, self._look_up(lookup, now), now + GRACE_S)
        elif waiting:
            self._store_cost.begin(now)
            fetch = self._transfers.fetch(part.names, now, sizes=part.sizes)
            self._fetches[fetch] = part
            until = now + self._store_cost.longest_s(part.num_tokens, load_s) + GRACE_S
            self._wait_on(waiting, fetch, until)

    def _wait_on(self, waiting: list[SequenceGroup], transfer: Transfer, until: float) -> None:
        """Lets requests wait for another transfer."""
        for group in waiting:
            self._loads[group].transfer, self._loads[group].until = transfer, until

    @property
    def _num_fetchable(self) -> int:
        """Blocks of the CPU pool that another fetch may have."""
        holds = [*self._pinned.values(), *(load.arrived for load in self._loads.values())]
        num_fetched = sum(self._pool.num_blocks_of(hold.blocks) for hold in holds)
        num_fetched += self._transfers.num_blocks(TransferKind.FETCH)
        return min(self._most_fetched - num_fetched, self._pool.num_free)

    @property
    def _most_fetched(self) -> int:
        return int(MAX_FETCHED_SHARE * self._pool.num_blocks)

    def fetched(
        self, transfer: Transfer, result: MoveResult, now: float, *, from_peer: bool = False
    ) -> None:
        """Takes the end of a fetch, and of its ownership of the blocks."""
        names = transfer.hashes[: 0 if transfer.is_void else result.num_blocks]
        if not from_peer:
            names = list(itertools.takewhile(self._is_trusted, names))
        part = self._fetches.pop(transfer)
        rest = part.cut(part.end, arrived=names)
        counts = self._peer_reads.counts if from_peer else self.counts
        num_tokens = part.num_tokens - rest.num_tokens
        counts.add_fetch(transfer, result, num_tokens=num_tokens)
        arrived = transfer.hold.publish(names)
        transfer.hold.release()
        waiting = self._waiting_for(transfer)
        for group in waiting:
            group.num_fetched_tokens += num_tokens
            group.timeline.moved_blocks(
                EventKind.FETCHED,
                now,
                result,
                source=transfer.source,
                store="" if transfer.source else self._store_kind,
            )
        if waiting:
            self._loads[waiting[0]].arrived.absorb(arrived)
        arrived.release()
        goes_on = waiting and from_peer and names and not result.failed
        if goes_on and rest.num_names and self._resume(waiting, rest, now):
            return
        for group in waiting:
            self._return(group, now)

    def _resume(self, waiting: list[SequenceGroup], rest: PrefixPart, now: float) -> bool:
        """Fetches the rest of what another worker has exported in part, as its plan copies no
        more at a time; returns whether that pays."""
        if (found := self._peer_reads.find(rest, now)) is None:
            return False
        fetch = self._peer_reads.fetch_if_paying(*found, now, most=self._num_fetchable)
        if fetch is not None:
            self._fetches[fetch.transfer] = fetch.part
            self._wait_on(waiting, fetch.transfer, fetch.until + GRACE_S)
        return fetch is not None

    def _waiting_for(self, transfer: Transfer) -> list[SequenceGroup]:
        return [
            group
            for group, load in self._loads.items()
            if load.transfer is transfer and group in self._queues.loading
        ]

    # Ending

    def return_all(self, now: float) -> None:
        """Ends all loading: the worker drains."""
        for group in list(self._loads):
            self._return(group, now)

    def _return(self, group: SequenceGroup, now: float) -> None:
        """Ends a request's loading; puts it back into the admission queue unless it has left.

        What it waits for is called off if no other waits for it.
        """
        load = self._loads.pop(group)
        if not any(other.transfer is load.transfer for other in self._loads.values()):
            self._transfers.cancel(load.transfer, now)
        prefix = load.held
        prefix.absorb(load.arrived)
        if group not in self._queues.loading:
            prefix.release()
            return
        group.timeline.loaded(self._queues.admission.waits, now)
        self._queues.return_loaded(group)
        if prefix.blocks:
            self._queues.admission.prefixes[group] = prefix

    @property
    def _pinned(self) -> dict[SequenceGroup, Hold]:
        """Prefixes of waiting requests in this worker's CPU pool."""
        prefixes = self._queues.admission.prefixes.items()
        return {group: prefix for group, prefix in prefixes if prefix.pool is self._pool}

    def forget_pins(self) -> None:
        """Gives all pinned blocks up: the worker is gone, or its cache is reset."""
        for group in self._pinned:
            self._queues.admission.prefixes.pop(group).release()

    def check(self) -> None:
        """Asserts that requests load that should."""
        assert self._queues.loading.keys() <= self._loads.keys(), "a request loads nothing"

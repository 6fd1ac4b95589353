"""Writes blocks to a worker's store behind the steps: those that a second request has used.

The second request may have found a block or computed it anew, because it was in no pool any more. A
block that is used once is most often not used again, and a device wears out by what is written. A
conversation goes on most often, so all of its blocks are written from its second turn on.

The worker says how many bytes a second may be written. It is the scheduler that keeps to it, as it
decides what is copied to the CPU pool to be written. What may be written in a day is bounded by the
worker alone, whose count outlives leases.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence as Hashes

from signalbox_contract.model import StoreCapacity
from signalbox_contract.sections.store_moves import MoveResult
from signalbox_scheduler.kv.block_allocator import BlockHash, HoldKind
from signalbox_scheduler.kv.block_events import PrefixFound, SequenceFreed
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.transfers.pending_transfers import PendingTransfers, Transfer, TransferKind
from signalbox_scheduler.transfers.prefix_part import PrefixPart
from signalbox_scheduler.transfers.seen_blocks import SeenBlocks

MAX_WANTED = 4096
"""Blocks of each group that may wait to be written; those that wait longest are given up."""
MAX_KNOWN = 1 << 16
"""Blocks of each group that are remembered as written."""
MAX_ENDS = 1 << 16
"""Ends of answers that are remembered: 256 KiB."""
MAX_STORED_SHARE = 0.25
"""Most of the CPU pool that may be written at a time."""
MAX_BLOCKS = 32
"""Blocks of each group of one write, and so of a step."""
MAX_STORE_S = 10.0
"""Longest that a write may take; it is called off then."""
PAUSE_S = 10.0
"""Time for which nothing is written after a write that failed."""
REFUSED_PAUSE_S = 1.0
"""Time for which nothing is written after the store has not kept a block: it may not be ready."""


def most_stored(num_cpu_blocks: int) -> int:
    """Returns how many blocks of a CPU pool may be written at a time; 0 if it is too small."""
    return int(MAX_STORED_SHARE * num_cpu_blocks)


class NoWrites:
    """Writes nothing: the worker has no store."""

    num_blocks = 0
    """Blocks that were written."""
    num_bytes = 0
    num_failures = 0

    def follow(self, event: PrefixFound | SequenceFreed) -> None:
        """Counts a use of blocks."""

    def know(self, hashes: Hashes[BlockHash]) -> None:
        """Remembers that the store has blocks."""

    def miss(self, hashes: Hashes[BlockHash]) -> None:
        """Forgets that the store had blocks: it has them no more."""

    def plan(self, now: float) -> None:
        """Begins to write blocks of one request, as far as the bounds let it."""

    def stored(self, transfer: Transfer, result: MoveResult, now: float) -> None:
        """Takes the end of a write, and of its ownership of the blocks."""

    def forget(self) -> None:
        """Begins anew: the store is emptied."""


class WriteBehind(NoWrites):
    """Chooses what one worker writes to its store, and remembers what it has written."""

    def __init__(
        self, store: StoreCapacity, transfers: PendingTransfers, state: SchedulerState
    ) -> None:
        self._store_kind = store.kind
        self._transfers = transfers
        self._blocks = state.blocks
        self._num_groups = state.blocks.num_groups
        self._cost = state.cost
        self._allowance = WriteAllowance(store, block_bytes=state.cost.block_bytes)
        self._wanted: OrderedDict[BlockHash, SequenceGroup] = OrderedDict()
        self._known: OrderedDict[BlockHash, None] = OrderedDict()
        self._used = SeenBlocks()
        self._ends = SeenBlocks(MAX_ENDS)
        self._of: dict[Transfer, SequenceGroup] = {}
        self._paused_until = -math.inf

    def follow(self, event: PrefixFound | SequenceFreed) -> None:
        """Has blocks written that a prompt has found in a pool, or a sequence that ends has used.

        A request that is computed again has found its own.
        """
        group = event.seq.group
        if isinstance(event, SequenceFreed):
            self._count_uses(event.seq, event.num_cached_blocks)
        elif not (event.seq.output_token_ids or group.num_preemptions):
            self._want(group, PrefixPart(self._blocks, event.seq, end=event.num_rows).names)

    def _want(self, group: SequenceGroup, hashes: Hashes[BlockHash]) -> None:
        """Has blocks written unless they have been."""
        for block_hash in hashes:
            if block_hash in self._known:
                self._known.move_to_end(block_hash)
            elif block_hash not in self._wanted:
                self._wanted[block_hash] = group
        while len(self._wanted) > MAX_WANTED * self._num_groups:
            self._wanted.popitem(last=False)

    def _count_uses(self, seq: Sequence, num_rows: int) -> None:
        """Has blocks of a sequence that ends written, if an earlier request has used them, too.

        Of the branches of a request the first counts. All blocks are written of a sequence whose
        prompt has an answer in it that has ended here: it is a later turn of a conversation.
        """
        if seq is not seq.group.sequences[0]:
            return
        width = self._num_groups
        names = self._blocks.prefix_hashes(seq, 0, num_rows * width)
        rows = {names[start]: names[start : start + width] for start in range(0, len(names), width)}
        used = [row for row in rows if self._used.add(row)]
        num_of_prompt = seq.group.num_prompt_tokens // self._blocks.block_size
        goes_on = any(self._ends.discard(row) for row in list(rows)[:num_of_prompt])
        for row in rows if goes_on else used:
            self._want(seq.group, rows[row])
        if len(rows) > num_of_prompt:
            self._ends.add(names[-width])

    def know(self, hashes: Hashes[BlockHash]) -> None:
        for block_hash in hashes:
            self._wanted.pop(block_hash, None)
            self._known[block_hash] = None
            self._known.move_to_end(block_hash)
        while len(self._known) > MAX_KNOWN * self._num_groups:
            self._known.popitem(last=False)

    def miss(self, hashes: Hashes[BlockHash]) -> None:
        for block_hash in hashes:
            self._known.pop(block_hash, None)

    def plan(self, now: float) -> None:
        self._transfers.cancel_older(TransferKind.STORE, began_before=now - MAX_STORE_S, now=now)
        most = min(self._num_storable, MAX_BLOCKS * self._num_groups)
        num_blocks = self._allowance.num_blocks(now, most=most)
        if not self._wanted or num_blocks < 1 or now < self._paused_until:
            return
        chosen, hold = self._choose(num_blocks)
        if chosen:
            hashes, group = list(chosen), next(iter(chosen.values()))
            transfer = self._transfers.store(hashes, hold, tenant=group.request.tenant, now=now)
            self._allowance.take(sum(transfer.sizes))
            self._of[transfer] = group
            self.know(hashes)

    def _choose(self, most: int) -> tuple[dict[BlockHash, SequenceGroup], Hold]:
        """Returns what is written next, all for the same request, and a hold of its copies.

        A state is written whole, though it has more blocks than are left.
        """
        chosen: dict[BlockHash, SequenceGroup] = {}
        hold = Hold(self._blocks.cpu, kind=HoldKind.STORE)
        num_before = self._blocks.copies.num_out
        while self._blocks.cpu.num_blocks_of(hold.blocks) < most and self._wanted:
            block_hash, group = next(iter(self._wanted.items()))
            num_copies = self._blocks.copies.num_out - num_before
            if chosen and group not in chosen.values():
                break
            if not self._cost.keeps_more_copies(num_copies=num_copies):
                break
            del self._wanted[block_hash]
            if self._blocks.copies.store_copy(block_hash, hold):
                chosen[block_hash] = group
        return chosen, hold

    @property
    def _num_storable(self) -> int:
        num_stored = self._transfers.num_blocks(TransferKind.STORE)
        return most_stored(self._blocks.cpu.num_blocks) - num_stored

    def stored(self, transfer: Transfer, result: MoveResult, now: float) -> None:
        self.num_blocks += sum(transfer.sizes[: result.num_blocks])
        self.num_bytes += result.num_bytes
        if transfer.is_void:
            self.miss(transfer.hashes)
        elif result.failed:
            self.num_failures += 1
            self._paused_until = now + PAUSE_S
        elif result.num_blocks < len(transfer.hashes):
            self._paused_until = now + REFUSED_PAUSE_S
        self.miss(transfer.hashes[result.num_blocks :])
        group = self._of.pop(transfer)
        if not group.is_finished:
            group.timeline.moved_blocks(EventKind.STORED, now, result, store=self._store_kind)
        transfer.hold.release(oldest_first=True)

    def forget(self) -> None:
        self._wanted.clear()
        self._known.clear()
        self._used = SeenBlocks()
        self._ends = SeenBlocks(MAX_ENDS)


class WriteAllowance:
    """Bytes that may be written now: a bucket that fills."""

    def __init__(self, store: StoreCapacity, *, block_bytes: int) -> None:
        self._block_bytes = max(1, block_bytes)
        self._per_s = store.max_write_bytes_per_s
        self._filled_at = -math.inf
        self._bytes = 0.0

    def num_blocks(self, now: float, *, most: int) -> int:
        """Returns how many blocks may be written now, of so many."""
        if not self._per_s:
            return most
        most_bytes = max(
            self._per_s, self._block_bytes
        )  # a block may be more than a second's bytes
        self._bytes = min(most_bytes, self._bytes + self._per_s * (now - self._filled_at))
        self._filled_at = now
        return min(most, int(self._bytes // self._block_bytes))

    def take(self, num_blocks: int) -> None:
        self._bytes -= num_blocks * self._block_bytes

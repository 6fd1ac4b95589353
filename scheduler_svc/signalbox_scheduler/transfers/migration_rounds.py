"""Rounds of copies for the groups that come to a worker: what is missing, asked for, and arrived.

A round is a fetch of blocks that the source exports. What has arrived in the CPU pool goes on to
the GPU with the destination's next plan."""

from collections.abc import Mapping

from signalbox_contract.sections.store_moves import MoveResult
from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.transfers.migration import Migration
from signalbox_scheduler.transfers.peers import TransferPeer
from signalbox_scheduler.transfers.pending_transfers import Transfer

MAX_ROUND_SHARE = 0.25
"""Most of the destination's CPU pool that one round uses, but for a state, which comes whole."""
MAX_ROUNDS_IN_VAIN = 4
"""Consecutive rounds without progress after which a migration ends."""
GRACE_S = 0.5
"""Seconds that a round may take beyond twice its predicted time, and that a paused group waits for
room."""


class MigrationRounds:
    """The rounds of one destination's migrations."""

    def __init__(self, blocks: BlockSpaceManager, peer: TransferPeer, *, cost: CostModel) -> None:
        self._blocks = blocks
        self._peer = peer
        self._cost = cost
        self._fetches: dict[Transfer, Migration] = {}

    def prepare(self, migration: Migration) -> bool:
        """Takes what is kept for a group and has come for it; False if there is no room."""
        if not self._blocks.sizes.keeps_all:
            migration.drop_outdated()
        return self._take_blocks(migration) and self._place_landed(migration)

    def _take_blocks(self, migration: Migration) -> bool:
        """Takes the GPU blocks that have been kept for a group since its migration began."""
        num_wanted, migration.num_wanted = migration.num_wanted, 0
        if num_wanted > self._blocks.gpu.num_free:
            return False
        migration.spare.take(num_wanted)
        return True

    def _place_landed(self, migration: Migration) -> bool:
        """Brings what has arrived in the CPU pool to the GPU; False if there is no room."""
        gpu, cpu = self._blocks.gpu, self._blocks.cpu
        for name in list(migration.landed):
            found = gpu.find(name)
            landed = migration.landed[name]
            size = cpu.num_blocks_of(landed.blocks)
            if found is None and len(migration.spare.blocks) + gpu.num_free < size:
                return False
            del migration.landed[name]
            if found is not None:
                migration.filled.share([found])
                landed.release()
            else:
                is_public = cpu.hashes.get(landed.blocks[0]) == name
                place = migration.next_spare(size)
                self._blocks.copies.copy_in(landed, place)
                if is_public:
                    place = place.publish([name])
                elif name not in migration.private:  # it was forgotten meanwhile
                    place.retract()
                (found,) = place.blocks
                migration.filled.absorb(place)
            migration.arrived[name] = found
        return True

    def missing(self, migration: Migration) -> dict[BlockHash, int]:
        """Returns what has to be copied, by name, with its block at the source; takes what is here
        already."""
        missing = {}
        for block, name in migration.names().items():
            if name in migration.arrived:
                continue
            if (found := self._blocks.gpu.find(name)) is not None:
                migration.filled.share([found])
                migration.arrived[name] = found
            else:
                missing[name] = block
        return missing

    def room(self, migration: Migration) -> int:
        """Returns how many blocks a round may copy now: both CPU pools have room for them."""
        pool, source = self._blocks.cpu, migration.source.peer.exports
        return min(pool.num_free, int(MAX_ROUND_SHARE * pool.num_blocks), source.num_exportable)

    def waits(self, migration: Migration) -> bool:
        """Says whether other transfers are under way, whose ends make room."""
        return bool(self._fetches or migration.source.peer.exports.is_exporting)

    def begin(self, migration: Migration, missing: Mapping[BlockHash, int], now: float) -> bool:
        """Fetches as much of what is missing as both CPU pools have room for.

        If other transfers have the room, the round waits for their ends; a paused group waits no
        longer than GRACE_S. Returns False if the migration cannot succeed."""
        source, most = migration.source.peer, self.room(migration)
        sizes = self._of_round(migration, missing, most)
        if not sizes and self.waits(migration):
            return not migration.has_paused or now < migration.paused_at + GRACE_S
        is_in_vain = migration.num_missing is not None and len(missing) >= migration.num_missing
        migration.num_rounds_in_vain = (migration.num_rounds_in_vain + 1) * is_in_vain
        migration.num_missing = len(missing)
        if not sizes or migration.num_rounds_in_vain >= MAX_ROUNDS_IN_VAIN:
            return False
        public = migration.source.blocks.gpu.hashes
        private = {name: missing[name] for name in sizes if public.get(missing[name]) != name}
        ends = (source.endpoint, self._peer.endpoint)
        load_s = sum(end.inflight.expected_s() for end in ends)
        load_s += self._cost.load_s(sum(sizes.values()), from_peer=True)
        migration.until = now + 2 * load_s + GRACE_S
        is_urgent = migration.is_urgent or migration.has_paused
        migration.fetch = self._peer.reads.fetch(
            source.exports,
            list(sizes),
            now,
            sizes=list(sizes.values()),
            private=private,
            is_urgent=is_urgent,
        )
        self._fetches[migration.fetch] = migration
        return True

    def _of_round(
        self, migration: Migration, missing: Mapping[BlockHash, int], most: int
    ) -> dict[BlockHash, int]:
        """Returns what the next round brings, with the number of its blocks: a state alone if it is
        more than a round may have and the CPU pool holds it."""
        gpu, sizes = migration.source.blocks.gpu, dict[BlockHash, int]()
        for name, block in missing.items():
            size = gpu.num_blocks_of([block])
            is_alone = not sizes and most > 0 and size <= self._blocks.cpu.num_free
            if size > most and not is_alone:
                break
            sizes[name], most = size, most - size
        return sizes

    def fetched(self, transfer: Transfer, result: MoveResult) -> Migration | None:
        """Takes the end of a round; returns its migration, None if the fetch was for something
        else.

        Blocks that arrive after the end of the migration stay in the cache.
        """
        migration = self._fetches.pop(transfer, None)
        if migration is None:
            return None
        migration.fetch = None
        num_blocks = 0 if transfer.is_void else result.num_blocks
        for name in transfer.hashes[:num_blocks]:
            migration.landed[name] = self._land(migration, name, transfer.hold)
        transfer.hold.release()
        migration.num_blocks += num_blocks
        migration.num_bytes += result.num_bytes
        if migration.is_over:
            migration.release()
        return migration

    def _land(self, migration: Migration, name: BlockHash, fetched: Hold) -> Hold:
        """Takes the first block of a fetch, and lets it be found unless its name is private.

        A block of the pool that holds the same takes its place.
        """
        if name in migration.private:
            return fetched.publish([None])
        known = self._blocks.cpu.find(name)
        landed = fetched.publish([name])
        if known is not None:
            landed.release()
            landed.share([known])
        return landed

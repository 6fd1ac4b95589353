"""The part of one worker in migrations: groups that come to it, and groups that leave it.

What comes is looked after in this worker's plans: each begins the next round of copies, has the
source pause the group, or takes it in.
"""

from collections.abc import Iterator

from signalbox_contract.cache_groups import NO_BLOCK
from signalbox_contract.sections.store_moves import MoveResult
from signalbox_rpc.metrics.histogram import times
from signalbox_rpc.metrics.sample import Sample, counter, counters, durations
from signalbox_scheduler.kv.block_allocator import AllocStatus, BlockHash, HoldKind
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.transfers.migration import Migration, MigrationEnd
from signalbox_scheduler.transfers.migration_rounds import MigrationRounds
from signalbox_scheduler.transfers.peers import TransferPeer
from signalbox_scheduler.transfers.pending_transfers import Transfer

MAX_INCOMING = 4
"""Groups that may come to a worker at once."""
MAX_OUTGOING = 8
"""Groups that a draining worker migrates at once."""
TAIL_ROWS = 2
"""Rows of whole blocks of each sequence that may be missing when the group is paused."""
GROWTH_ROWS = 2
"""Rows of blocks of each sequence that are reserved beyond those which it has."""


class WorkerMigrations(MigrationEnd):
    """Plans what comes to one worker, and reserves room for it."""

    def __init__(self, state: SchedulerState, peer: TransferPeer) -> None:
        super().__init__(state, peer)
        self.cost = state.cost
        self.only_prefills = False
        """True if what runs here is migrated to workers that decode."""
        self.num_in = 0
        self.num_bytes = 0
        """Bytes that came with groups."""
        self.pause_ns = times()
        """Times from the pause of groups that came to their first step here."""
        self._group_selection = state.selection
        self._grammars = state.grammars
        self._stages = state.stages
        self._rounds = MigrationRounds(state.blocks, peer, cost=state.cost)
        self._ready: list[Migration] = []
        """Migrations with all blocks here, in the plan that is being filled."""

    @property
    def num_seqs(self) -> int:
        """Sequences that run here once all migrations have ended well."""
        num_outgoing = sum(migration.num_slots for migration in self.outgoing.values())
        return self.queues.num_sequence_slots + self.queues.num_held_slots - num_outgoing

    @property
    def takes_waiting(self) -> bool:
        """True if a group waits that this worker may take: it needs none of another worker."""
        return any(map(self._group_selection.can_ever_run, self.queues.candidates))

    def samples(self) -> Iterator[Sample]:
        yield from counters(
            "migrations",
            "Running requests that left a worker, came to it, or stayed after all.",
            {"out": self.num_out, "in": self.num_in, "aborted": self.num_aborted},
            by="result",
        )
        meaning = "Bytes of KV that came to a worker with requests."
        yield counter("migration_bytes", meaning, self.num_bytes)
        meaning = "From the pause of a request at the other worker to its first step at this one."
        yield durations("migration_pause_seconds", meaning, self.pause_ns)

    # Reserving

    def reserve(
        self,
        group: SequenceGroup,
        source: MigrationEnd,
        now: float,
        *,
        is_urgent: bool = True,
    ) -> bool:
        """Begins to take a running group over; False, changing nothing, if there is no room.

        What follows needs no further call. Until the group runs here it runs at its source, where
        it goes on if the migration comes to nothing."""
        if (
            not self.queues.is_accepting
            or self.queues.swapped
            or len(self.incoming) >= MAX_INCOMING
        ):
            return False
        can_read = self.peer.endpoint.can_read(source.peer.endpoint)
        if not can_read or not source.may_leave(group):
            return False
        selection = self._group_selection
        if not selection.can_ever_run(group) or not selection.has_slots(group):
            return False
        gpu, hashes = self.blocks.gpu, source.blocks.distinct_blocks(group).values()
        found = {h: block for h in hashes if h and (block := gpu.find(h)) is not None}
        num_slots = group.num_reserved_sequences
        num_spare = source.blocks.num_distinct_blocks(group) - gpu.num_blocks_of(found.values())
        num_spare += self.blocks.sizes.num_in_rows(GROWTH_ROWS) * num_slots
        num_unused = gpu.num_blocks_of(filter(gpu.is_cached, found.values()))
        num_wanted = sum(migration.num_wanted for migration in self.incoming.values())
        if gpu.room_for(num_spare + num_unused + num_wanted) is not AllocStatus.OK:
            return False
        filled = Hold(self.blocks.gpu, kind=HoldKind.MIGRATION)
        filled.share(found.values())
        migration = Migration(
            group=group,
            source=source,
            destination=self,
            num_slots=num_slots,
            num_wanted=num_spare,
            is_urgent=is_urgent,
            spare=Hold(self.blocks.gpu, kind=HoldKind.MIGRATION),
            filled=filled,
            arrived=found,
        )
        migration.begin()
        return True

    # Rounds

    def plan(self, now: float) -> None:
        """Goes on with what comes, before this worker's plan is filled."""
        self._ready.clear()
        for migration in list(self.incoming.values()):
            is_valid = migration.is_valid and self.queues.is_accepting
            if not (is_valid and self._rounds.prepare(migration) and self._advance(migration, now)):
                migration.abort(now)
        self._retry_at = {group: at for group, at in self._retry_at.items() if now < at}

    def _advance(self, migration: Migration, now: float) -> bool:
        """Does what is next for a group on its way; returns False if nothing can come of it."""
        if migration.fetch is not None:
            return not self._is_late(migration, now)
        has_grammar = self._grammars.has(migration.group)
        if not has_grammar:
            if migration.has_paused:  # it was forgotten meanwhile, to make room for another
                return False
            self._grammars.want(migration.group)
        missing = self._rounds.missing(migration)
        if not migration.has_paused:
            if len(missing) > TAIL_ROWS * self.blocks.num_groups * migration.num_slots:
                return self._rounds.begin(migration, missing, now)
            if not (migration.may_pause and has_grammar):
                return True
            if not self._rounds.room(migration):  # for the copies that the pause is for
                return self._rounds.waits(migration)
            migration.pause(now)
            missing = self._rounds.missing(migration)
        if migration.group.is_inflight:
            return True
        if missing:
            return self._rounds.begin(migration, missing, now)
        self._ready.append(migration)
        return True

    def _is_late(self, migration: Migration, now: float) -> bool:
        fetch = migration.fetch
        return (
            fetch is not None and now >= migration.until and self.peer.reads.came_late(fetch, now)
        )

    def fetched(self, transfer: Transfer, result: MoveResult, now: float) -> bool:
        """Takes the end of a round; False if the fetch was for something else."""
        migration = self._rounds.fetched(transfer, result)
        if migration is None:
            return False
        if not migration.is_over and (result.failed or not migration.landed):
            migration.abort(now)
        return True

    # Taking in

    @property
    def has_ready(self) -> bool:
        """True if `admit_ready` has something to do in the plan that is being filled."""
        return bool(self._ready)

    def admit_ready(self, now: float) -> list[SequenceGroup]:
        """Lets groups that have all their blocks here run here; returns them."""
        ready, self._ready = self._ready, []
        taken = []
        for migration in ready:
            if self._is_complete(migration):
                self._take(migration, now)
                taken.append(migration.group)
            else:
                migration.abort(now)
        return taken

    def _is_complete(self, migration: Migration) -> bool:
        """Says whether there is room for the group as it is now."""
        if migration.is_over or migration.group.num_reserved_sequences > migration.num_slots:
            return False
        num_blocks = migration.source.blocks.num_distinct_blocks(migration.group)
        return num_blocks - migration.num_reserved <= self.blocks.gpu.num_free

    def _take(self, migration: Migration, now: float) -> None:
        """Moves a group from its source to this worker."""
        group, source, names = migration.group, migration.source, migration.names()
        placed = {NO_BLOCK: NO_BLOCK}  # block at the source: its copy here
        states = source.blocks.states_of(group)
        for block in source.blocks.distinct_blocks(group):
            if (name := names.get(block)) is not None:
                placed[block] = migration.arrived[name]
            elif block in states:  # a snapshot stays
                placed[block] = NO_BLOCK
            else:
                place = migration.next_spare()
                (placed[block],) = place.blocks
                migration.filled.absorb(place)
        private = {place for block, place in placed.items() if source.blocks.gpu.is_private(block)}
        tables = {seq: [placed[block] for block in seq.block_table] for seq in group.unfinished}
        num_cached = {seq: seq.num_cached_blocks for seq in group.unfinished}
        source.release(group)
        for seq, table in tables.items():
            self.blocks.take_over(seq, table, num_cached_blocks=num_cached[seq], private=private)
        migration.end()
        self.queues.run(group)
        group.num_migrations += 1
        self._grammars.record_use(group)
        self.num_in += 1
        self.num_bytes += migration.num_bytes
        self.pause_ns.observe(round(1e9 * (now - migration.paused_at)))
        source.num_out += 1
        source.retry_now()
        source.peer.endpoint.wake()
        group.timeline.migrated(
            now,
            worker=self.peer.endpoint.identity.address,
            stages=self._stages,
            num_blocks=migration.num_blocks,
            num_bytes=migration.num_bytes,
            seconds=now - migration.paused_at,
        )

    # Leaving

    def answered(self) -> None:
        """Lets destinations see what a step of this worker has brought."""
        for migration in self.outgoing.values():
            migration.destination.peer.endpoint.wake()

    def abort_invalid(self, now: float) -> None:
        """Calls off migrations of groups that have ended, or yielded, in the plan that is filled.

        Comes before exports are planned: their blocks may have been given to other sequences.
        """
        for migration in list(self.outgoing.values()):
            if not migration.is_valid:
                migration.abort(now)

    def distrust(self, block_hash: BlockHash, now: float) -> None:
        """Calls off migrations whose destination has a block that went wrong here."""
        for migration in [*self.outgoing.values(), *self.incoming.values()]:
            if block_hash in migration.arrived or block_hash in migration.landed:
                migration.abort(now)

    # Giving up

    def release_reservation(self, now: float) -> bool:
        """Gives up the youngest reservation, as running groups lack blocks; False if none is."""
        if not self.incoming:
            return False
        next(reversed(self.incoming.values())).abort(now)
        return True

    def check(self) -> None:
        """Asserts that migrations are known at both ends, and what the destination keeps for
        them."""
        held = [migration.num_slots for migration in self.incoming.values()]
        assert self.queues.num_held_slots == sum(held)
        for group, migration in self.incoming.items():
            assert migration.source.outgoing[group] is migration
        for group, migration in self.outgoing.items():
            assert migration.destination.incoming[group] is migration
        for group in self.queues.running:
            assert not group.is_paused or group in self.outgoing, f"{group.request_id} waits"

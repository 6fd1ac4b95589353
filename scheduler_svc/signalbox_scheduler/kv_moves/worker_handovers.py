"""The part of one worker in handovers: groups that come to it, and groups that leave it.

What comes is looked after in this worker's plans: each begins the next round of copies, has the
owner pause the group, or takes it in.
"""

from collections.abc import Iterator

from signalbox_contract.sections.store_moves import MoveResult
from signalbox_rpc.metrics.histogram import times
from signalbox_rpc.metrics.sample import Sample, also_named, counter, durations
from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.kv_moves.handover import Handover, HandoverEnd
from signalbox_scheduler.kv_moves.handover_rounds import HandoverRounds
from signalbox_scheduler.kv_moves.moves_under_way import Move
from signalbox_scheduler.kv_moves.peers import TransferPeer
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.sequence_group import SequenceGroup

MAX_COMING = 4
"""Groups that may come to a worker at once."""
MAX_LEAVING = 8
"""Groups that a draining worker hands over at once."""
TAIL_BLOCKS = 2
"""Whole blocks of each sequence that may be missing when the group is paused."""
GROWTH_BLOCKS = 2
"""Blocks of each sequence that are reserved beyond those which it has."""


class WorkerHandovers(HandoverEnd):
    """One worker's."""

    def __init__(self, state: SchedulerState, peer: TransferPeer) -> None:
        super().__init__(state, peer)
        self.cost = state.cost
        self.only_prefills = False
        """True if what runs here is handed over to workers that decode."""
        self.num_taken_over = 0
        self.num_bytes = 0
        """Bytes that came with groups."""
        self.pause_ns = times()
        """Times from the pause of groups that came to their first step here."""
        self._group_selection = state.selection
        self._grammars = state.grammars
        self._stages = state.stages
        self._rounds = HandoverRounds(state.blocks, peer, cost=state.cost)
        self._ready: list[Handover] = []
        """Handovers with all blocks here, in the plan that is being filled."""

    @property
    def num_seqs(self) -> int:
        """Sequences that run here once all handovers have ended well."""
        num_leaving = sum(handover.num_slots for handover in self.leaving.values())
        return self.queues.num_sequence_slots + self.queues.num_held_slots - num_leaving

    @property
    def takes_waiting(self) -> bool:
        """True if a group waits that this worker may take: it needs none of another worker."""
        return any(map(self._group_selection.can_ever_run, self.queues.candidates))

    def samples(self) -> Iterator[Sample]:
        for result, old_result, number in (
            ("out", "handed_over", self.num_handed_over),
            ("in", "taken_over", self.num_taken_over),
            ("aborted", "given_up", self.num_given_up),
        ):
            meaning = "Running requests that left a worker, came to it, or stayed after all."
            migrations = counter("migrations", meaning, number, result=result)
            yield from also_named("handovers", migrations, result=old_result)
        meaning = "Bytes of KV that came to a worker with requests."
        yield from also_named("handover_bytes", counter("migration_bytes", meaning, self.num_bytes))
        meaning = "From the pause of a request at the other worker to its first step at this one."
        pauses = durations("migration_pause_seconds", meaning, self.pause_ns)
        yield from also_named("handover_pause_seconds", pauses)

    # Reserving

    def reserve(
        self,
        group: SequenceGroup,
        owner: HandoverEnd,
        now: float,
        *,
        is_urgent: bool = True,
    ) -> bool:
        """Begins to take a running group over; False, changing nothing, if there is no room.

        What follows needs no further call. Until the group runs here it runs at its owner, where it
        goes on if the handover comes to nothing.
        """
        if not self.queues.is_accepting or self.queues.swapped or len(self.coming) >= MAX_COMING:
            return False
        if not self.peer.can_read(owner.peer) or not owner.may_leave(group):
            return False
        selection = self._group_selection
        if not selection.can_ever_run(group) or not selection.has_slots(group):
            return False
        hashes = owner.blocks.distinct_blocks(group).values()
        found = {h: block for h in hashes if h and (block := self.blocks.gpu.find(h)) is not None}
        num_slots = group.num_reserved_sequences
        num_spare = len(hashes) - len(found) + GROWTH_BLOCKS * num_slots
        num_unused = sum(map(self.blocks.gpu.is_cached, found.values()))
        num_wanted = sum(handover.num_wanted for handover in self.coming.values())
        if not self.blocks.has_room(num_spare + num_unused + num_wanted):
            return False
        filled = Hold(self.blocks.gpu)
        filled.share(found.values())
        handover = Handover(
            group=group,
            owner=owner,
            taker=self,
            num_slots=num_slots,
            num_wanted=num_spare,
            is_urgent=is_urgent,
            spare=Hold(self.blocks.gpu),
            filled=filled,
            arrived=found,
        )
        handover.begin()
        return True

    # Rounds

    def plan(self, now: float) -> None:
        """Goes on with what comes, before this worker's plan is filled."""
        self._ready.clear()
        for handover in list(self.coming.values()):
            is_valid = handover.is_valid and self.queues.is_accepting
            if not (is_valid and self._rounds.prepare(handover) and self._advance(handover, now)):
                handover.give_up(now)
        self._retry_at = {group: at for group, at in self._retry_at.items() if now < at}

    def _advance(self, handover: Handover, now: float) -> bool:
        """Does what is next for a group on its way; returns False if nothing can come of it."""
        if handover.fetch is not None:
            return not self._is_late(handover, now)
        has_grammar = self._grammars.has(handover.group)
        if not has_grammar:
            if handover.has_paused:  # it was forgotten meanwhile, to make room for another
                return False
            self._grammars.want(handover.group)
        missing = self._rounds.missing(handover)
        if not handover.has_paused:
            if len(missing) > TAIL_BLOCKS * handover.num_slots:
                return self._rounds.begin(handover, missing, now)
            if not (handover.may_pause and has_grammar):
                return True
            if not self._rounds.room(handover):  # for the copies that the pause is for
                return self._rounds.waits(handover)
            handover.pause(now)
            missing = self._rounds.missing(handover)
        if handover.group.is_inflight:
            return True
        if missing:
            return self._rounds.begin(handover, missing, now)
        self._ready.append(handover)
        return True

    def _is_late(self, handover: Handover, now: float) -> bool:
        fetch = handover.fetch
        return fetch is not None and now >= handover.until and self.peer.reads.came_late(fetch, now)

    def fetched(self, move: Move, result: MoveResult, now: float) -> bool:
        """Takes the end of a round; False if the fetch was for something else."""
        handover = self._rounds.fetched(move, result)
        if handover is None:
            return False
        if not handover.is_over and (result.failed or not handover.landed):
            handover.give_up(now)
        return True

    # Taking in

    @property
    def has_ready(self) -> bool:
        """True if `take_in` has something to do in the plan that is being filled."""
        return bool(self._ready)

    def take_in(self, now: float) -> list[SequenceGroup]:
        """Lets groups that have all their blocks here run here; returns them."""
        ready, self._ready = self._ready, []
        taken = []
        for handover in ready:
            if self._is_complete(handover):
                self._take(handover, now)
                taken.append(handover.group)
            else:
                handover.give_up(now)
        return taken

    def _is_complete(self, handover: Handover) -> bool:
        """Says whether there is room for the group as it is now."""
        if handover.is_over or handover.group.num_reserved_sequences > handover.num_slots:
            return False
        num_blocks = len(handover.owner.blocks.distinct_blocks(handover.group))
        return num_blocks - handover.num_reserved <= self.blocks.gpu.num_free

    def _take(self, handover: Handover, now: float) -> None:
        """Moves a group from its owner to this worker."""
        group, owner, names = handover.group, handover.owner, handover.names()
        placed: dict[int, int] = {}  # block at the owner: its copy here
        for block in owner.blocks.distinct_blocks(group):
            if (name := names.get(block)) is not None:
                placed[block] = handover.arrived[name]
            else:
                place = handover.next_spare()
                (placed[block],) = place.blocks
                handover.filled.absorb(place)
        private = {placed[block] for block in placed if owner.blocks.gpu.is_private(block)}
        tables = {seq: [placed[block] for block in seq.block_table] for seq in group.unfinished}
        num_cached = {seq: seq.num_cached_blocks for seq in group.unfinished}
        owner.release(group)
        for seq, table in tables.items():
            self.blocks.take_over(seq, table, num_cached_blocks=num_cached[seq], private=private)
        handover.end()
        self.queues.run(group)
        group.num_handovers += 1
        self._grammars.record_use(group)
        self.num_taken_over += 1
        self.num_bytes += handover.num_bytes
        self.pause_ns.observe(round(1e9 * (now - handover.paused_at)))
        owner.num_handed_over += 1
        owner.retry_now()
        owner.peer.endpoint.wake()
        group.timeline.migrated(
            now,
            worker=self.peer.endpoint.identity.address,
            stages=self._stages,
            num_blocks=handover.num_blocks,
            num_bytes=handover.num_bytes,
            seconds=now - handover.paused_at,
        )

    # Leaving

    def answered(self) -> None:
        """Lets takers see what a step of this worker has brought."""
        for handover in self.leaving.values():
            handover.taker.peer.endpoint.wake()

    def drop_left(self, now: float) -> None:
        """Calls off handovers of groups that have ended, or yielded, in the plan that is filled.

        Comes before lends are planned: their blocks may have been given to other sequences.
        """
        for handover in list(self.leaving.values()):
            if not handover.is_valid:
                handover.give_up(now)

    def distrust(self, block_hash: BlockHash, now: float) -> None:
        """Calls off handovers whose taker has a block that went wrong here."""
        for handover in [*self.leaving.values(), *self.coming.values()]:
            if block_hash in handover.arrived or block_hash in handover.landed:
                handover.give_up(now)

    # Giving up

    def yield_room(self, now: float) -> bool:
        """Gives up the youngest reservation, as running groups lack blocks; False if none is."""
        if not self.coming:
            return False
        next(reversed(self.coming.values())).give_up(now)
        return True

    def check(self) -> None:
        """Asserts that handovers are known at both ends, and what the taker keeps for them."""
        held = [handover.num_slots for handover in self.coming.values()]
        assert self.queues.num_held_slots == sum(held)
        for group, handover in self.coming.items():
            assert handover.owner.leaving[group] is handover
        for group, handover in self.leaving.items():
            assert handover.taker.coming[group] is handover
        for group in self.queues.running:
            assert not group.is_paused or group in self.leaving, f"{group.request_id} waits"

"""Rounds of copies for the groups that come to a worker: what is missing, asked for, and arrived.

A round is a fetch of blocks that the owner lends. What has arrived in the CPU pool goes on to the
GPU with the taker's next plan.
"""

import itertools
from collections.abc import Mapping

from signalbox_contract.sections.store_moves import MoveResult
from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.kv_moves.handover import Handover
from signalbox_scheduler.kv_moves.moves_under_way import Move
from signalbox_scheduler.kv_moves.peers import TransferPeer

MAX_ROUND_SHARE = 0.25
"""Most of the taker's CPU pool that one round uses."""
MAX_ROUNDS_IN_VAIN = 4
"""Consecutive rounds without progress after which a handover ends."""
GRACE_S = 0.5
"""Seconds that a round may take beyond twice its predicted time, and that a paused group waits for
room."""


class HandoverRounds:
    """The rounds of one taker's handovers."""

    def __init__(self, blocks: BlockSpaceManager, peer: TransferPeer, *, cost: CostModel) -> None:
        self._blocks = blocks
        self._peer = peer
        self._cost = cost
        self._fetches: dict[Move, Handover] = {}

    def prepare(self, handover: Handover) -> bool:
        """Takes what is kept for a group and has come for it; False if there is no room."""
        return self._take_blocks(handover) and self._place_landed(handover)

    def _take_blocks(self, handover: Handover) -> bool:
        """Takes the GPU blocks that have been kept for a group since its handover began."""
        num_wanted, handover.num_wanted = handover.num_wanted, 0
        if num_wanted > self._blocks.gpu.num_free:
            return False
        handover.spare.take(num_wanted)
        return True

    def _place_landed(self, handover: Handover) -> bool:
        """Brings what has arrived in the CPU pool to the GPU; False if there is no room."""
        gpu, cpu = self._blocks.gpu, self._blocks.cpu
        for name in list(handover.landed):
            found = gpu.find(name)
            if found is None and not handover.spare.blocks and not gpu.num_free:
                return False
            landed = handover.landed.pop(name)
            if found is not None:
                handover.filled.share([found])
                landed.release()
            else:
                is_public = cpu.hashes.get(landed.blocks[0]) == name
                place = handover.next_spare()
                self._blocks.copies.copy_in(landed, place)
                if is_public:
                    place = place.publish([name])
                elif name not in handover.private:  # it was forgotten meanwhile
                    place.retract()
                (found,) = place.blocks
                handover.filled.absorb(place)
            handover.arrived[name] = found
        return True

    def missing(self, handover: Handover) -> dict[BlockHash, int]:
        """Returns what has to be copied, by name, with its block at the owner; takes what is here
        already."""
        missing = {}
        for block, name in handover.names().items():
            if name in handover.arrived:
                continue
            if (found := self._blocks.gpu.find(name)) is not None:
                handover.filled.share([found])
                handover.arrived[name] = found
            else:
                missing[name] = block
        return missing

    def room(self, handover: Handover) -> int:
        """Returns how many blocks a round may copy now: both CPU pools have room for them."""
        pool, owner = self._blocks.cpu, handover.owner.peer.exports
        return min(pool.num_free, int(MAX_ROUND_SHARE * pool.num_blocks), owner.num_lendable)

    def waits(self, handover: Handover) -> bool:
        """Says whether other moves are under way, whose ends make room."""
        return bool(self._fetches or handover.owner.peer.exports.is_lending)

    def begin(self, handover: Handover, missing: Mapping[BlockHash, int], now: float) -> bool:
        """Fetches as much of what is missing as both CPU pools have room for.

        If other moves have the room, the round waits for their ends; a paused group waits no longer
        than GRACE_S. Returns False if the handover cannot succeed.
        """
        owner, most = handover.owner.peer, self.room(handover)
        if most < 1 and self.waits(handover):
            return not handover.has_paused or now < handover.paused_at + GRACE_S
        is_in_vain = handover.num_missing is not None and len(missing) >= handover.num_missing
        handover.num_rounds_in_vain = (handover.num_rounds_in_vain + 1) * is_in_vain
        handover.num_missing = len(missing)
        if most < 1 or handover.num_rounds_in_vain >= MAX_ROUNDS_IN_VAIN:
            return False
        names = list(itertools.islice(missing, most))
        public = handover.owner.blocks.gpu.hashes
        private = {name: missing[name] for name in names if public.get(missing[name]) != name}
        ends = (owner.endpoint, self._peer.endpoint)
        load_s = sum(end.inflight.expected_s() for end in ends)
        load_s += self._cost.load_s(len(names), from_peer=True)
        handover.until = now + 2 * load_s + GRACE_S
        is_urgent = handover.is_urgent or handover.has_paused
        handover.fetch = self._peer.reads.fetch(
            owner.exports, names, now, private=private, is_urgent=is_urgent
        )
        self._fetches[handover.fetch] = handover
        return True

    def fetched(self, move: Move, result: MoveResult) -> Handover | None:
        """Takes the end of a round; returns its handover, None if the fetch was for something else.

        Blocks that arrive after the end of the handover stay in the cache.
        """
        handover = self._fetches.pop(move, None)
        if handover is None:
            return None
        handover.fetch = None
        num_blocks = 0 if move.is_void else result.num_blocks
        for name in move.hashes[:num_blocks]:
            handover.landed[name] = self._land(handover, name, move.hold)
        move.hold.release()
        handover.num_blocks += num_blocks
        handover.num_bytes += result.num_bytes
        if handover.is_over:
            handover.release()
        return handover

    def _land(self, handover: Handover, name: BlockHash, fetched: Hold) -> Hold:
        """Takes the first block of a fetch, and lets it be found unless its name is private.

        A block of the pool that holds the same takes its place.
        """
        if name in handover.private:
            return fetched.publish([None])
        known = self._blocks.cpu.find(name)
        landed = fetched.publish([name])
        if known is not None:
            landed.release()
            landed.share([known])
        return landed

"""Blocks that a worker of the cluster lends to another, which fetches them instead of computing.

The scheduler knows which worker has which block, so that no worker is asked. A lend is a move of
its owner's pool, a fetch one of its reader's; the end of either ends the other.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from contract.sections.store_moves import BlockSource, MoveResult
from scheduler_svc.kv.block_allocator import BlockHash
from scheduler_svc.kv.block_manager import BlockSpaceManager
from scheduler_svc.kv.cost_model import CostModel
from scheduler_svc.kv_moves.distrusted_blocks import DistrustedBlocks
from scheduler_svc.kv_moves.moves_under_way import Move, MoveKind, MovesUnderWay
from scheduler_svc.kv_moves.peer_reads import PeerFetch, PeerIdentity, PeerReads
from scheduler_svc.planning.steps_in_flight import StepsInFlight

LEND_S = 10.0
"""Time for which blocks are lent at most, on the clock of the worker that has them."""
MAX_LENT_SHARE = 0.25
"""Most of a CPU pool that may be lent at a time."""
MAX_PLANS_AHEAD = 4
"""Plans whose copies may be ahead of a lend: a reader copies all of a part to the GPU in a step."""


def most_lent(num_cpu_blocks: int) -> int:
    """Returns how many blocks of a CPU pool may be lent at a time; 0 if it is too small."""
    return int(MAX_LENT_SHARE * num_cpu_blocks)


class Lending(PeerReads):
    """The blocks that one worker lends to others, and reads of them."""

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
        super().__init__(identity, peers, blocks=blocks, moves=moves, cost=cost)
        self.inflight = inflight
        """Steps that the worker computes before the one that lends what is wanted now."""
        self.num_lent_bytes = 0
        self._num_tickets = 0
        self._wanted: dict[PeerFetch, None] = {}
        """Fetches for which the next plan lends."""
        self._lends: dict[Move, PeerFetch] = {}

    @property
    def is_lending(self) -> bool:
        """True if other workers read of this one, or are about to."""
        return bool(self._wanted or self._lends)

    @property
    def num_lendable(self) -> int:
        """Blocks that the next plan may lend beside those that are wanted already."""
        num_wanted = sum(len(pair.fetch.hashes) for pair in self._wanted)
        return max(0, self._num_spare - num_wanted)

    @property
    def _num_spare(self) -> int:
        num_lent = sum(len(move.blocks) for move, one in self._lends.items() if one.is_read)
        return max(0, most_lent(self._blocks.cpu.num_blocks) - num_lent)

    def num_found(self, hashes: Sequence[BlockHash]) -> int:
        """Returns how many of the first of these blocks either pool has."""
        for index, block_hash in enumerate(hashes):
            if self._blocks.cpu.find(block_hash) is None and (
                self._blocks.gpu.find(block_hash) is None
            ):
                return index
        return len(hashes)

    def make_source(self, reader: PeerIdentity) -> BlockSource:
        """Returns what a reader shows. It takes both epochs, which only the scheduler has."""
        self._num_tickets += 1
        parts = self.identity.epoch, reader.epoch, self._num_tickets
        told = b"".join(part.to_bytes(8, "little") for part in parts)
        ticket = hashlib.blake2b(told, digest_size=16, person=b"ticket").digest()
        return BlockSource(self.identity.address, self.identity.certified_name, ticket)

    def want(self, pair: PeerFetch) -> None:
        """Has the next plan lend what a fetch asks for."""
        self._wanted[pair] = None
        self.wake()

    def plan(self, now: float) -> None:
        """Lends what is wanted, as far as it is still here."""
        self._moves.cancel_older(MoveKind.LEND, began_before=now - 2 * LEND_S, now=now)
        wanted, self._wanted = self._wanted, {}
        for pair in self._lends.values() if wanted else ():
            self.forget_ahead(pair)  # what is wanted now comes first
        for pair in wanted:
            if not self._num_spare:
                self._wanted[pair] = None  # until what is lent has been read
                continue
            blocks = self._take_copies(pair, pair.fetch.hashes)
            if not blocks:
                pair.reader.call_off(pair, now)
                continue
            pair.lend = self._moves.lend(
                pair.fetch.hashes[: len(blocks)],
                blocks,
                ticket=pair.source.ticket,
                reader=pair.reader.identity.certified_name,
                lasts_s=LEND_S,
                now=now,
            )
            self._lends[pair.lend] = pair
        if not wanted and len(self._lends) == 1:  # else plans copy for the others
            ((lend, pair),) = self._lends.items()
            self._copy_ahead(pair, num_lent=len(lend.hashes))

    def _copy_ahead(self, pair: PeerFetch, *, num_lent: int) -> None:
        """Copies what the reader will ask for next, while it reads the first of its blocks.

        It comes in fewer and longer parts so, as each part has to wait for steps of both workers.
        """
        num_ahead = len(pair.ahead)
        rest = pair.fetch.hashes[num_lent + num_ahead : num_lent + self._num_spare]
        if pair.goes_on and self._keeps_more(pair, num_ahead // MAX_PLANS_AHEAD):
            public = list(itertools.takewhile(lambda one: one not in pair.private, rest))
            pair.ahead += self._take_copies(pair, public)

    def _take_copies(self, pair: PeerFetch, hashes: Sequence[BlockHash]) -> list[int]:
        """Takes blocks of the CPU pool with the first of some blocks that are here."""
        blocks: list[int] = []
        num_before = len(self._blocks.copies.out_of_gpu)
        for block_hash in hashes[: self._num_spare]:
            if not self._keeps_more(pair, len(self._blocks.copies.out_of_gpu) - num_before):
                break
            if block_hash in pair.private:
                block = self._blocks.copies.copy_out(pair.private[block_hash])
            else:
                block = self._blocks.copies.store_copy(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _keeps_more(self, pair: PeerFetch, num_copies: int) -> bool:
        """Says whether a plan that copies so many blocks for a reader should copy another."""
        step_s = max(self._cost.last_decode_s, pair.reader.last_decode_s)
        return self._cost.keeps_more_copies(
            num_copies=num_copies, step_s=step_s, is_urgent=pair.is_urgent
        )

    def forget_ahead(self, pair: PeerFetch) -> None:
        """Gives copies up that were made ahead; the next part takes those that are still here."""
        ahead, pair.ahead = pair.ahead, []
        for block in reversed(ahead):  # of a chain the end is forgotten first
            self._blocks.cpu.free(block)

    @property
    def ahead(self) -> list[int]:
        """Blocks of the CPU pool with copies that were made ahead, once for each reader."""
        return [block for pair in self._lends.values() for block in pair.ahead]

    def lent(self, move: Move, result: MoveResult) -> None:
        """Takes the end of a lend, and of its ownership of the blocks."""
        self.num_lent_bytes += result.num_bytes
        self.forget_ahead(self._lends.pop(move))
        for block in reversed(move.blocks):
            self._blocks.cpu.free(block)
        if self._wanted:
            self.wake()

    def give_up(self, pair: PeerFetch, now: float) -> None:
        """Ends a lend that is read no more; a no-op if it has ended."""
        self._wanted.pop(pair, None)
        if pair.lend in self._lends:
            self.forget_ahead(pair)
            self._moves.cancel(pair.lend, now)
            self.wake()

    def retract(self, block_hash: BlockHash, now: float) -> None:
        """Takes a block back that went wrong here, wherever it is on its way or has arrived."""
        for pair in [*self._wanted, *self._lends.values()]:
            if block_hash in pair.fetch.hashes:
                self.give_up(pair, now)
        for reader in self._peers.members:
            reader.lose(block_hash, self, now)

    def leave(self, now: float) -> None:
        """Ends what others wait for: the worker is gone."""
        for pair in [*self._wanted, *self._lends.values()]:
            pair.reader.call_off(pair, now)
        for pair in self._fetches.values():
            pair.owner.give_up(pair, now)
        for pairs in (self._wanted, self._lends, self._fetches):
            pairs.clear()

    def check(self) -> None:
        """Asserts that what is lent holds what is said of it, unless it was voided meanwhile."""
        for move, pair in self._lends.items():
            for block, block_hash in zip(move.blocks, move.hashes, strict=True):
                known = self._blocks.cpu.hashes.get(block)
                is_private = known is None and block_hash in pair.private
                is_lent = known == block_hash or is_private or move.cancelled_at is not None
                assert is_lent, f"{block} is not what is lent"


@dataclass(slots=True)
class Peers:
    """The workers of the cluster that may lend to each other, in the order in which they joined."""

    members: list[Lending] = field(default_factory=list)
    distrusted: DistrustedBlocks = field(default_factory=DistrustedBlocks)
    """Blocks that no worker fetches from a store."""

    def join(self, lending: Lending) -> None:
        self.members.append(lending)

    def leave(self, lending: Lending, now: float) -> None:
        """Takes a worker out, whose moves end with it."""
        self.members.remove(lending)
        lending.leave(now)
        for other in self.members:
            other.forget(lending)

"""Moves of the fake worker: they end when a test lets them, in any order, whole or in part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from signalbox_contract.sections.block_moves import BlockMoves
from signalbox_contract.sections.store_moves import (
    Export,
    Fetch,
    Find,
    MoveResult,
    Store,
    StoreMoves,
)

Block = dict[int, tuple[int, int]]
"""By offset: a token, and a hash of all tokens up to it."""

BLOCK_BYTES = 32


class Ending(NamedTuple):
    """How a move ends: after so many steps, having done at most so many blocks."""

    num_steps: int = 0
    most: int = 1 << 30
    failed: str = ""


@dataclass(slots=True)
class FakeStore:
    """What one lease moves to and from `kept`, which outlives it, and other workers."""

    kept: dict[bytes, Block]
    cpu: dict[int, Block]
    tickets: "dict[bytes, tuple[FakeStore, int]]" = field(default_factory=dict)
    """Workers that have been told of tickets, and the number of each export; for all workers."""
    ends_at_once: bool = True
    heeds_cancels: bool = True
    patience: int = 0
    """Steps for which a move whose end is due waits for the owner of its ticket to be told."""
    endings: Iterator[Ending] | None = None
    """How moves end that begin from now on, instead of at once or when a test says so."""
    duration_ns: int = 1000
    """Time of each move, as the worker reports it."""
    due: dict[int, Ending] = field(default_factory=dict)
    pending: dict[int, Find | Fetch | Store | Export] = field(default_factory=dict)
    ended: list[MoveResult] = field(default_factory=list)
    num_fetched: int = 0
    num_stored: int = 0
    num_borrowed: int = 0

    def begin(self, moves: StoreMoves | None) -> None:
        if moves is None:
            return
        self._cancel(moves.cancels)
        for clear in moves.clears:
            self.kept.clear()
            self.ended.append(MoveResult(clear.move_id, 0))
        begun: list[Find | Fetch | Store | Export] = [*moves.finds, *moves.fetches]
        for move in [*begun, *moves.stores, *moves.exports]:
            assert move.move_id not in self.pending
            if isinstance(move, Fetch):
                assert not self.blocks & set(move.cpu_blocks), "a move's block is written"
            if isinstance(move, Store | Export):
                assert not self.written & set(move.cpu_blocks), "what is read is written"
            self.pending[move.move_id] = move
            if isinstance(move, Export):
                self.tickets[move.ticket] = self, move.move_id
            if self.endings is not None:
                self.due[move.move_id] = next(self.endings)
            elif self.ends_at_once and self._may_end(move):
                self.end(move.move_id)
        self._cancel(moves.cancels)  # of moves that have just begun

    def _cancel(self, move_ids: Sequence[int]) -> None:
        for move_id in move_ids:
            if move_id in self.pending and self.heeds_cancels:
                self.end(move_id, most=1, failed="cancelled")

    def _may_end(self, move: Find | Fetch | Store | Export) -> bool:
        """Returns whether what a move waits for has happened."""
        if isinstance(move, Fetch) and move.source is not None:
            return move.source.ticket in self.tickets
        return not isinstance(move, Export)

    @property
    def blocks(self) -> set[int]:
        """Blocks of the CPU pool that moves read or write."""
        moves = (one for one in self.pending.values() if not isinstance(one, Find))
        return {block for move in moves for block in move.cpu_blocks}

    @property
    def written(self) -> set[int]:
        moves = (one for one in self.pending.values() if isinstance(one, Fetch))
        return {block for move in moves for block in move.cpu_blocks}

    def check_block_moves(self, moves: BlockMoves) -> None:
        """Asserts that a step's copies leave the blocks of moves alone."""
        assert not self.written & set(moves.swap_in.src.tolist()), "read before it has arrived"
        assert not self.blocks & set(moves.swap_out.dst.tolist()), "a move's block is overwritten"

    def end(self, move_id: int, *, most: int = 1 << 30, failed: str = "") -> None:
        """Lets a move end, having done `most` blocks."""
        move = self.pending.pop(move_id)
        self.due.pop(move_id, None)
        if isinstance(move, Fetch) and move.source is not None:
            self._borrow(move, move.source.ticket, most, failed)
            return
        done = 0
        for index, block_hash in enumerate(move.hashes[:most]):
            if isinstance(move, Export):
                break
            if isinstance(move, Store):
                self.kept[block_hash] = dict(self.cpu[move.cpu_blocks[index]])
                self.num_stored += 1
            elif (block_hash in self.kept) is (isinstance(move, Find) and move.seeks):
                break
            elif isinstance(move, Fetch):
                self.cpu[move.cpu_blocks[index]] = dict(self.kept[block_hash])
                self.num_fetched += 1
            done += 1
        num_bytes = 0 if isinstance(move, Find) else done * BLOCK_BYTES
        self.ended.append(MoveResult(move_id, done, num_bytes, self.duration_ns, failed))

    def _borrow(self, move: Fetch, ticket: bytes, most: int, failed: str) -> None:
        """Ends a fetch from another worker, and with it the export."""
        owner, export_id = self.tickets.pop(ticket, (self, -1))
        export = owner.pending.get(export_id)
        done = 0
        if isinstance(export, Export):
            for block_hash, exported, src, dst in zip(
                move.hashes[:most], export.hashes, export.cpu_blocks, move.cpu_blocks, strict=False
            ):
                assert exported == block_hash, "another block is exported"
                self.cpu[dst] = dict(owner.cpu[src])
                done += 1
            del owner.pending[export_id]
            owner.due.pop(export_id, None)
            owner.ended.append(MoveResult(export_id, done, done * BLOCK_BYTES, 1000))
        self.num_borrowed += done
        self.ended.append(
            MoveResult(move.move_id, done, done * BLOCK_BYTES, self.duration_ns, failed)
        )

    def _waits(self, ending: Ending) -> bool:
        """Returns whether a move still waits for what its end depends on."""
        return ending.num_steps > -self.patience

    def pop_ended(self) -> list[MoveResult]:
        for move_id in list(self.pending):
            ending = self.due.get(move_id, Ending())
            is_told = self._may_end(self.pending[move_id])
            if ending.num_steps > 0 or (
                move_id in self.due and not is_told and self._waits(ending)
            ):
                self.due[move_id] = ending._replace(num_steps=ending.num_steps - 1)
            elif move_id in self.due or (self.ends_at_once and is_told):
                self.end(move_id, most=ending.most, failed=ending.failed)
        ended, self.ended = self.ended, []
        return ended

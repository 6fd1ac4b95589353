"""The stage of a step that begins moves between the CPU pool and a store or other workers."""

from collections.abc import Iterable, Sequence

import numpy as np

from signalbox_contract.errors import FailedPrecondition, InvalidArgument
from signalbox_contract.sections.store_moves import Fetch, Lend, MoveResult, Store, StoreMoves
from signalbox_contract.step import Step
from signalbox_worker.batch.runner_protocol import Lending, Runner, StoreQueue, Storing
from signalbox_worker.kv_peers.peer_client import BlockReader
from signalbox_worker.kv_peers.peer_moves import PeerMoves
from signalbox_worker.sequences.step_validation import check_range

_WHERE = "store_moves"


class StoreMoveStage:
    """Implements `SectionStage`; comes after the stage whose block moves a store follows.

    Args:
        block_reader: reads from other workers; None if none is reached.
    """

    def __init__(
        self, runner: Runner, *, num_cpu_blocks: int, block_reader: BlockReader | None = None
    ) -> None:
        self._queue: StoreQueue | None = None
        self._peers: PeerMoves | None = None
        if isinstance(runner, Storing):
            self._queue = runner.move_queue()
        if isinstance(runner, Lending) and block_reader is not None:
            self._peers = runner.peer_moves()
        self._block_reader = block_reader
        self._num_cpu_blocks = num_cpu_blocks
        self._last_move_id = 0

    def check(self, step: Step) -> None:
        moves = step.store_moves
        if moves is None:
            return
        if self._queue is None and (moves.needs_store or self._peers is None):
            raise FailedPrecondition("this worker has no store for KV blocks, and the step uses it")
        if self._peers is None and moves.needs_peers:
            raise FailedPrecondition("this worker exchanges no KV blocks with others")
        self._check_ids(moves)
        fetched = _blocks(one.cpu_blocks for one in moves.fetches)
        stored = _blocks(one.cpu_blocks for one in moves.stores)
        lent = _blocks(one.cpu_blocks for one in moves.lends)
        for name, blocks in (("fetches", fetched), ("stores", stored), ("lends", lent)):
            check_range(f"{_WHERE}.{name}.cpu_blocks", np.array(blocks), self._num_cpu_blocks)
        used = [*stored, *lent, *step.block_moves.swap_in.src, *step.block_moves.swap_out.dst]
        if len(set(fetched)) < len(fetched) or set(fetched).intersection(used):
            field, wanted = f"{_WHERE}.fetches.cpu_blocks", "blocks that nothing else uses"
            raise InvalidArgument(field, len(fetched), wanted)
        copying: list[Fetch | Store | Lend] = [*moves.fetches, *moves.stores, *moves.lends]
        if not all(one.hashes for one in (*moves.finds, *copying)):
            raise InvalidArgument(f"{_WHERE}.hashes", 0, "at least one hash in each move")
        for one in copying:
            if len(one.hashes) != len(one.cpu_blocks):
                wanted = f"{len(one.hashes)} elements"
                raise InvalidArgument(f"{_WHERE}.cpu_blocks", len(one.cpu_blocks), wanted)

    def _check_ids(self, moves: StoreMoves) -> None:
        ids = sorted(moves.move_ids)
        if len(set(ids)) < len(ids) or (ids and ids[0] <= self._last_move_id):
            wanted = f"distinct numbers from {self._last_move_id + 1} on"
            raise InvalidArgument(f"{_WHERE}.move_id", ids[0], wanted)

    def apply(self, step: Step) -> int:
        """Takes no time of the step, whatever the moves take."""
        if (moves := step.store_moves) is None:
            return 0
        if self._queue is not None:
            self._queue.begin(moves)
        if self._peers is not None:
            self._begin_with_peers(moves, self._peers)
        self._last_move_id = max([self._last_move_id, *moves.move_ids])
        return 0

    def _begin_with_peers(self, moves: StoreMoves, peers: PeerMoves) -> None:
        assert self._block_reader is not None, "else nothing reads"
        for lend in moves.lends:
            peers.lend(lend)
        for fetch in moves.fetches:
            if fetch.source is not None:
                move = peers.receive(fetch.move_id, fetch.hashes, fetch.cpu_blocks)
                self._block_reader.begin(move, fetch.source, block_bytes=peers.block_bytes)
        if moves.cancels:  # some may be of moves that have just begun
            peers.cancel(moves.cancels)
            self._block_reader.stop_ended()

    def close(self) -> None:
        """Ends the moves from and to other workers; those of the store end by themselves."""
        if self._peers is not None and self._block_reader is not None:
            self._peers.close()
            self._block_reader.stop_ended()

    def pop_ended(self) -> Sequence[MoveResult]:
        """Returns the moves that have ended since the last call."""
        queues = (one for one in (self._queue, self._peers) if one is not None)
        return [ended for queue in queues for ended in queue.pop_ended()] or ()


def _blocks(lists: Iterable[Sequence[int]]) -> list[int]:
    return [block for blocks in lists for block in blocks]

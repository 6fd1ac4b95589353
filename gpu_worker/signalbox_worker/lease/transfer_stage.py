"""The stage of a step that begins transfers between the CPU pool and a store or other workers."""

from collections.abc import Iterable, Sequence

import numpy as np

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sections.store_moves import Fetch, Lend, Store, StoreMoves
from signalbox_contract.step import Step
from signalbox_worker.kv_store.block_transfers import BlockTransfers
from signalbox_worker.sequences.step_validation import check_range

_WHERE = "store_moves"


class TransferStage:
    """Implements `SectionStage`; comes after the stage whose block moves a store follows."""

    def __init__(self, transfers: BlockTransfers, *, num_cpu_blocks: int) -> None:
        self._transfers = transfers
        self._num_cpu_blocks = num_cpu_blocks
        self._last_move_id = 0

    def check(self, step: Step) -> None:
        moves = step.store_moves
        if moves is None:
            return
        self._transfers.check(moves)
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
        """Takes no time of the step, whatever the transfers take."""
        if (moves := step.store_moves) is None:
            return 0
        self._transfers.begin(moves)
        self._last_move_id = max([self._last_move_id, *moves.move_ids])
        return 0


def _blocks(lists: Iterable[Sequence[int]]) -> list[int]:
    return [block for blocks in lists for block in blocks]

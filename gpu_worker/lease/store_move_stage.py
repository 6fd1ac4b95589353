"""The stage of a step that begins moves between the CPU pool and the runner's store."""

from collections.abc import Iterable, Sequence

import numpy as np

from contract.errors import FailedPrecondition, InvalidArgument
from contract.sections.store_moves import Fetch, MoveResult, Store, StoreMoves
from contract.step import Step
from gpu_worker.batch.runner_protocol import Runner, Storing
from gpu_worker.kv_store.move_queue import MoveQueue
from gpu_worker.sequences.step_validation import check_range

_WHERE = "store_moves"


class StoreMoveStage:
    """Implements `SectionStage`; comes after the stage whose block moves a store follows."""

    def __init__(self, runner: Runner, *, num_cpu_blocks: int) -> None:
        self._queue: MoveQueue | None = None
        if isinstance(runner, Storing):
            self._queue = runner.move_queue()
        self._num_cpu_blocks = num_cpu_blocks
        self._last_move_id = 0

    def check(self, step: Step) -> None:
        moves = step.store_moves
        if moves is None:
            return
        if self._queue is None:
            raise FailedPrecondition("this worker has no store for KV blocks, and the step uses it")
        self._check_ids(moves)
        fetched = _blocks(one.cpu_blocks for one in moves.fetches)
        stored = _blocks(one.cpu_blocks for one in moves.stores)
        for name, blocks in (("fetches", fetched), ("stores", stored)):
            check_range(f"{_WHERE}.{name}.cpu_blocks", np.array(blocks), self._num_cpu_blocks)
        used = [*stored, *step.block_moves.swap_in.src, *step.block_moves.swap_out.dst]
        if len(set(fetched)) < len(fetched) or set(fetched).intersection(used):
            field, wanted = f"{_WHERE}.fetches.cpu_blocks", "blocks that nothing else uses"
            raise InvalidArgument(field, len(fetched), wanted)
        copying: list[Fetch | Store] = [*moves.fetches, *moves.stores]
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
        if (moves := step.store_moves) is None or (queue := self._queue) is None:
            return 0
        queue.cancel(moves.cancels)
        for clear in moves.clears:
            queue.clear(clear.move_id, None if clear.tenant is None else clear.tenant.encode())
        for find in moves.finds:
            queue.find(find.move_id, find.hashes)
        for fetch in moves.fetches:
            queue.fetch(fetch.move_id, fetch.hashes, fetch.cpu_blocks)
        for store in moves.stores:
            queue.store(store.move_id, store.hashes, store.cpu_blocks, store.tenant.encode())
        self._last_move_id = max([self._last_move_id, *moves.move_ids])
        return 0

    def pop_ended(self) -> Sequence[MoveResult]:
        """Returns the moves that have ended since the last call."""
        return self._queue.pop_ended() if self._queue else ()


def _blocks(lists: Iterable[Sequence[int]]) -> list[int]:
    return [block for blocks in lists for block in blocks]

"""The handlers of a lease: each checks and applies one section of a step before that computes.

The lease calls its handlers for the steps of which `Step.has_sections` is true.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.errors import FailedPrecondition, InvalidArgument
from signalbox_contract.sections.block_moves import NO_MOVES, BlockMapping
from signalbox_contract.sections.store_moves import Export, Fetch, Store, StoreMoves
from signalbox_contract.step import Step
from signalbox_worker.kv.store.block_transfers import BlockTransfers
from signalbox_worker.lease.sequences.step_validation import check_range
from signalbox_worker.runner.runner import Runner


class SectionHandler(Protocol):
    """Checks and applies a section, before the step computes anything."""

    def check(self, step: Step) -> None:
        """Raises RpcError, having changed nothing, if the section is not allowed."""
        ...

    def apply(self, step: Step) -> int:
        """Applies the section if the step has it; an error ends the lease.

        Returns the nanoseconds that this takes, beside the forward pass or not.
        """
        ...


class BlockMoveHandler:
    """Implements `SectionHandler` for the pools of one lease."""

    def __init__(self, runner: Runner, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self._runner = runner
        self._num_gpu_blocks = num_gpu_blocks
        self._num_cpu_blocks = num_cpu_blocks

    def check(self, step: Step) -> None:
        moves = step.block_moves
        if moves is NO_MOVES:
            return
        gpu, cpu = self._num_gpu_blocks, self._num_cpu_blocks
        if not cpu and (len(moves.swap_out.src) or len(moves.swap_in.src)):
            raise FailedPrecondition("this lease has no swap space, and the step swaps blocks")
        _check_mapping("block_moves.swap_out", moves.swap_out, num_src=gpu, num_dst=cpu)
        _check_mapping("block_moves.swap_in", moves.swap_in, num_src=cpu, num_dst=gpu)
        _check_mapping("block_moves.copy", moves.copy, num_src=gpu, num_dst=gpu)
        _check_disjoint("block_moves.copy", moves.copy.src, moves.copy.dst)
        # Out runs before in: it would overwrite the block before that is read.
        _check_disjoint("block_moves.swap_out", moves.swap_in.src, moves.swap_out.dst)

    def apply(self, step: Step) -> int:
        if step.block_moves is NO_MOVES:
            return 0
        return self._runner.apply(
            Step(epoch=step.epoch, step_id=step.step_id, block_moves=step.block_moves)
        )


def _check_mapping(field: str, mapping: BlockMapping, *, num_src: int, num_dst: int) -> None:
    if not len(mapping.src) and not len(mapping.dst):
        return
    if len(mapping.src) != len(mapping.dst):
        raise InvalidArgument(f"{field}.dst", len(mapping.dst), f"{len(mapping.src)} elements")
    check_range(f"{field}.src", mapping.src, num_src)
    check_range(f"{field}.dst", mapping.dst, num_dst)
    if len(np.unique(mapping.dst)) != len(mapping.dst):
        raise InvalidArgument(f"{field}.dst", _first_repeated(mapping.dst), "distinct blocks")


def _check_disjoint(field: str, src: NDArray[np.int32], dst: NDArray[np.int32]) -> None:
    if len(src) and len(dst) and len(both := np.intersect1d(src, dst)):
        raise InvalidArgument(
            field, int(both[0]), "blocks that are not both source and destination of one step"
        )


def _first_repeated(values: NDArray[np.int32]) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[counts > 1][0])


_WHERE = "store_moves"


class TransferHandler:
    """Implements `SectionHandler`; comes after the one whose block moves a store follows."""

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
        exported = _blocks(one.cpu_blocks for one in moves.exports)
        for name, blocks in (("fetches", fetched), ("stores", stored), ("exports", exported)):
            check_range(f"{_WHERE}.{name}.cpu_blocks", np.array(blocks), self._num_cpu_blocks)
        used = [*stored, *exported, *step.block_moves.swap_in.src, *step.block_moves.swap_out.dst]
        if len(set(fetched)) < len(fetched) or set(fetched).intersection(used):
            field, wanted = f"{_WHERE}.fetches.cpu_blocks", "blocks that nothing else uses"
            raise InvalidArgument(field, len(fetched), wanted)
        copying: list[Fetch | Store | Export] = [*moves.fetches, *moves.stores, *moves.exports]
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

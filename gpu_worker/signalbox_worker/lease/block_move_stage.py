"""The stage of a step that moves blocks, of sequences that need not be in the step."""

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.errors import FailedPrecondition, InvalidArgument
from signalbox_contract.sections.block_moves import NO_MOVES, BlockMapping
from signalbox_contract.step import Step
from signalbox_worker.runner.runner import Runner
from signalbox_worker.sequences.step_validation import check_range


class BlockMoveStage:
    """Implements `SectionStage` for the pools of one lease."""

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

"""The stage of a step that moves blocks, before anything is computed."""

import time

from contract.sections.block_moves import NO_MOVES, BlockMoves
from gpu_worker.batch.runner_protocol import Overlapping, Runner


def move_blocks(moves: BlockMoves, runner: Runner) -> int:
    """Moves blocks, once, of sequences that need not be in the step: none could be failed.

    Returns the nanoseconds that this takes, beside the forward pass or not.
    """
    if moves is NO_MOVES:
        return 0
    start = time.monotonic_ns()
    if len(moves.swap_out.src):
        runner.swap_out(moves.swap_out)
    if len(moves.swap_in.src):
        runner.swap_in(moves.swap_in)
    if len(moves.copy.src):
        runner.copy(moves.copy)
    called_ns = time.monotonic_ns() - start
    has_swaps = len(moves.swap_out.src) or len(moves.swap_in.src)
    if has_swaps and isinstance(runner, Overlapping):
        return called_ns + runner.pop_copy_ns()
    return called_ns

"""Owns the two pools of KV blocks of a CPU, for steps and for swapped blocks, and copies blocks.

Block-major, [num_blocks, block_bytes]: one block of all layers is one run of bytes, and a move is
one copy. Copies are done when a call returns, before the step that reads or overwrites the blocks.
"""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_contract.step import Step
from signalbox_worker.device.spans import span
from signalbox_worker.kv.cache.pools import Pools

Pool = NDArray[np.uint8]


class BlockPools(Pools):
    """Both pools, zeroed; the system provides a page when it is first written to."""

    def __init__(self, *, num_gpu_blocks: int, num_cpu_blocks: int, block_bytes: int) -> None:
        if num_gpu_blocks < 1:
            raise ValueError("a KV cache needs at least one block")
        self.gpu_pool: Pool = np.zeros((num_gpu_blocks, block_bytes), dtype=np.uint8)
        self.cpu_pool: Pool = np.zeros((num_cpu_blocks, block_bytes), dtype=np.uint8)

    @property
    def gpu_bytes(self) -> int:
        return self.gpu_pool.nbytes

    @property
    def cpu_bytes(self) -> int:
        return self.cpu_pool.nbytes

    def cpu_block(self, index: int) -> memoryview:
        return memoryview(self.cpu_pool[index])

    def copies_begun(self) -> Callable[[], None]:
        return _nothing

    def apply(self, sections: Step) -> int:
        start, moves = time.monotonic_ns(), sections.block_moves
        for name, source, target, mapping in (
            ("swap_out", self.gpu_pool, self.cpu_pool, moves.swap_out),
            ("swap_in", self.cpu_pool, self.gpu_pool, moves.swap_in),
            ("copy_blocks", self.gpu_pool, self.gpu_pool, moves.copy),
        ):
            if len(mapping.src):
                with span(name):
                    _copy(source, target, mapping)
        return time.monotonic_ns() - start


def _copy(source: Pool, target: Pool, mapping: BlockMapping) -> None:
    """Copies block by block; within one pool no target is a source."""
    for src, dst in zip(mapping.src.tolist(), mapping.dst.tolist(), strict=True):
        target[dst] = source[src]


def _nothing() -> None:
    """Waits for no copies: they end within the step that names them."""

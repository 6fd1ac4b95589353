"""Owns the two pools of KV blocks, on the device and in RAM, and moves whole blocks.

Block-major, [num_blocks, block_bytes]: one block of all layers is one run of bytes, so that a move
is one copy a block and neighbours coalesce. What is inside a block is the attention backend's.
"""

import numpy as np
import torch
from torch import Tensor

from gpu_worker.step import BlockMapping, Int32Array
from signalbox_kernels import ops


class CacheEngine:
    """Both pools, zeroed at first. Pageable RAM is not touched, so not taken, until it is used."""

    def __init__(
        self, *, num_gpu_blocks: int, num_cpu_blocks: int, block_bytes: int, device: torch.device
    ) -> None:
        if num_gpu_blocks < 1:
            raise ValueError("a KV cache needs at least one block")
        self.gpu_pool = _zeroed_pool(num_gpu_blocks, block_bytes, device)
        self.cpu_pool = _swap_pool(num_cpu_blocks, block_bytes, device)

    def swap_out(self, mapping: BlockMapping) -> None:
        """Copies blocks from the GPU pool to the CPU pool."""
        self._swap(self.gpu_pool, self.cpu_pool, mapping)

    def swap_in(self, mapping: BlockMapping) -> None:
        """Copies blocks from the CPU pool to the GPU pool."""
        self._swap(self.cpu_pool, self.gpu_pool, mapping)

    def copy(self, mapping: BlockMapping) -> None:
        """Copies blocks within the GPU pool."""
        ops.copy_blocks(self.gpu_pool, _indexes(mapping.src), _indexes(mapping.dst))

    def _swap(self, src_pool: Tensor, dst_pool: Tensor, mapping: BlockMapping) -> None:
        ops.swap_blocks(src_pool, dst_pool, _indexes(mapping.src), _indexes(mapping.dst))


def _indexes(blocks: Int32Array) -> Tensor:
    return torch.from_numpy(blocks.astype(np.int64))


def _swap_pool(num_blocks: int, block_bytes: int, device: torch.device) -> Tensor:
    if device.type == "cuda" and num_blocks:
        return torch.zeros(num_blocks, block_bytes, dtype=torch.uint8, pin_memory=True)
    return _zeroed_pool(num_blocks, block_bytes, torch.device("cpu"))


def _zeroed_pool(num_blocks: int, block_bytes: int, device: torch.device) -> Tensor:
    if device.type == "cpu":  # NumPy's zeros are the operating system's: pages come when written
        return torch.from_numpy(np.zeros((num_blocks, block_bytes), dtype=np.uint8))
    return torch.zeros(num_blocks, block_bytes, dtype=torch.uint8, device=device)

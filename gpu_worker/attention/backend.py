"""The interface of attention backends.

A backend is made once, bound to a pool of blocks, and makes a plan of each step's batch. A plan
holds what all layers share (indexes, masks), so that a layer only computes its own math.
"""

from dataclasses import dataclass
from typing import Protocol, TypedDict

import torch
from torch import Tensor

from gpu_worker.batch.batch import Batch
from gpu_worker.layers import AttentionPlan


class KVScales(TypedDict):
    """Arguments of the ops that write and read a cache."""

    k_scale: float
    v_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Sizes and rules of one rank's attention."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    scale: float
    sliding_windows: tuple[int | None, ...]
    """[num_layers]; None if a layer's tokens see all positions."""
    dtype: torch.dtype
    device: torch.device
    soft_cap: float | None = None
    """Scores become cap * tanh(score / cap) before mask and softmax."""
    fp8_scales: tuple[tuple[float, float], ...] | None = None
    """[num_layers]: the scales of K and V, which the cache holds in E4M3; None if it holds them in
    `dtype`."""

    @property
    def kv_dtype(self) -> torch.dtype:
        """Type of K and V in the cache."""
        return self.dtype if self.fp8_scales is None else torch.float8_e4m3fn

    @property
    def block_bytes(self) -> int:
        """Bytes of the K and V of all layers in one block."""
        elements = 2 * self.num_kv_heads * self.block_size * self.head_size
        return self.num_layers * elements * self.kv_dtype.itemsize

    def kv_scales(self, layer: int) -> KVScales:
        """Returns the arguments of ops that say how a layer's cache is scaled."""
        k_scale, v_scale = (1.0, 1.0) if self.fp8_scales is None else self.fp8_scales[layer]
        return KVScales(k_scale=k_scale, v_scale=v_scale)


class AttentionBackend(Protocol):
    """Attention over a pool of blocks; its factory takes an AttentionShape."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block: all layers, K and V."""
        ...

    def bind(self, pool: Tensor) -> None:
        """Takes the pool to work on, [num_blocks, block_bytes] uint8, zeroed."""
        ...

    def plan(self, batch: Batch) -> AttentionPlan:
        """Prepares a step; the batch's blocks are in the bound pool."""
        ...

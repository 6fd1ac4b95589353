"""The interface of attention backends.

A backend is made once, bound to a pool of blocks, and makes a plan of each step's batch. A plan
holds what all layers share (indexes, masks), so that a layer only computes its own math.
"""

from dataclasses import dataclass
from typing import Protocol, TypedDict

import torch
from torch import Tensor

from signalbox_worker.batch.batch import Batch
from signalbox_worker.models.layers import AttentionPlan

_SCALE_BYTES = 4  # of a token's K or V of one head in int8


class KVScales(TypedDict):
    """Arguments of the ops that write and read a cache."""

    k_scale: float
    v_scale: float
    token_scales: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """A layer's K and V in all blocks of a pool; views of it."""

    kv: Tensor
    """[num_blocks, 2, num_kv_heads, block_size, head_size]."""
    scales: Tensor | None
    """[num_blocks, 2, num_kv_heads, block_size] float32 of K and V in int8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Sizes and rules of the attention of one shard."""

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
    has_sinks: bool = False
    """True if layers call SinkAttentionPlan.attend_with_sinks."""
    fp8_scales: tuple[tuple[float, float], ...] | None = None
    """[num_layers]: the scales of K and V, which the cache holds in E4M3; or None."""
    has_int8_cache: bool = False
    """True if the cache holds K and V in int8, with a scale for each token and head."""
    is_bidirectional: bool = False
    """True if tokens see those behind them too; a window is as wide on both sides."""

    @property
    def needs_scores(self) -> bool:
        """True if something is done to scores that PyTorch's own attention cannot do."""
        return self.soft_cap is not None or self.has_sinks

    @property
    def kv_dtype(self) -> torch.dtype:
        """Type of K and V in the cache."""
        if self.has_int8_cache:
            return torch.int8
        return self.dtype if self.fp8_scales is None else torch.float8_e4m3fn

    @property
    def codes_bytes(self) -> int:
        """Bytes of a layer's K, or V, of one head in one block, without scales."""
        size = self.block_size * self.head_size * self.kv_dtype.itemsize
        return -(-size // _SCALE_BYTES) * _SCALE_BYTES if self.has_int8_cache else size

    @property
    def head_bytes(self) -> int:
        """The same with the scales, which are behind."""
        scales = _SCALE_BYTES * self.block_size if self.has_int8_cache else 0
        return self.codes_bytes + scales

    @property
    def block_bytes(self) -> int:
        """Bytes of the K and V of all layers in one block."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_bytes

    def caches(self, pool: Tensor) -> list[LayerCache]:
        """Returns each layer's views of a pool whose blocks are [num_layers, 2, num_kv_heads,
        head_bytes]."""
        sizes = (self.num_layers, 2, self.num_kv_heads, self.head_bytes)
        heads = pool.view(len(pool), *sizes)
        count = self.block_size * self.head_size * self.kv_dtype.itemsize
        codes = heads[..., :count].view(self.kv_dtype)
        kv = codes.view(*codes.shape[:-1], self.block_size, self.head_size).unbind(dim=1)
        if not self.has_int8_cache:
            return [LayerCache(kv=each, scales=None) for each in kv]
        scales = heads[..., self.codes_bytes :].view(torch.float32).unbind(dim=1)
        return [LayerCache(kv=each, scales=its) for each, its in zip(kv, scales, strict=True)]

    def kv_scales(self, layer: int, token_scales: Tensor | None = None) -> KVScales:
        """Returns the arguments of ops that say how a layer's cache is scaled.

        Args:
            token_scales: of the layer's cache in int8, as the ops take them.
        """
        k_scale, v_scale = (1.0, 1.0) if self.fp8_scales is None else self.fp8_scales[layer]
        return KVScales(k_scale=k_scale, v_scale=v_scale, token_scales=token_scales)


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

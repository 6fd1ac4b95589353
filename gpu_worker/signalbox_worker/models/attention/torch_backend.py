"""The attention backend in plain Torch, for any device.

Inside a block: [num_layers, 2, num_kv_heads, block_size, head_size]; scales of tokens are behind
each head's K and V. A layer's K or V of one head is one run of bytes, so that a gather of rows by
(block, K or V, head) gives each head's context in one piece, ready for a batched product.

Decodes are batched: their contexts are gathered, padded to the longest of a group. Prefill chunks
attend one by one, through SDPA. `decode_grouping.py` decides the groups. K and V in 8 bits are
decoded where they were gathered; with E4M3, scores and results are multiplied by the layer's
scales.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from signalbox_kernels.torch.attention import attention_mask
from signalbox_kernels.torch.kv_cache import to_cache, to_int8
from signalbox_worker.batch.batch import Batch
from signalbox_worker.models.attention.backend import AttentionShape, LayerCache
from signalbox_worker.models.attention.decode_grouping import Chunk, DecodeGroup, plan_work


class _Work(Protocol):
    """Attention of the batch's tokens `rows`."""

    @property
    def rows(self) -> slice | Tensor: ...

    def attend(self, query: Tensor, cache: Tensor, k_scale: float, sinks: Tensor | None) -> Tensor:
        """[num_rows, num_heads, head_size] and a layer's rows to [num_rows, all heads].

        Args:
            sinks: [num_kv_heads, heads that share one].
        """
        ...


@dataclass(frozen=True, slots=True)
class _ChunkWork:
    """Attention of one sequence, with any number of queries at its end."""

    rows: slice | Tensor
    gather: Tensor
    """[2 * num_kv_heads * num_blocks] int64."""
    keys: slice
    """The keys that some query sees, within the gathered blocks."""
    mask: Tensor | None
    """[num_queries, num_keys], added to the scores."""
    is_causal: bool
    shape: AttentionShape

    def attend(self, query: Tensor, cache: Tensor, k_scale: float, sinks: Tensor | None) -> Tensor:
        shape, num_queries = self.shape, query.shape[0]
        scale = k_scale * shape.scale
        gathered = _decoded(cache.index_select(0, self.gather), shape)
        keys, values = gathered.view(2, shape.num_kv_heads, 1, -1, shape.head_size)[
            :, :, :, self.keys
        ]
        query = query.view(num_queries, shape.num_kv_heads, -1, shape.head_size)
        query = query.permute(1, 2, 0, 3)
        if num_queries == 1:  # the heads of a group are its queries: K and V are read once
            query = query.transpose(1, 2)
            sinks = None if sinks is None else sinks[:, None]
        else:
            keys = keys.expand(-1, query.shape[1], -1, -1)
            values = values.expand(-1, query.shape[1], -1, -1)
            sinks = None if sinks is None else sinks[:, :, None]
        if shape.needs_scores:
            out = self._attend_by_scores(query, keys, values, scale=scale, sinks=sinks)
        else:
            out = F.scaled_dot_product_attention(
                query, keys, values, self.mask, is_causal=self.is_causal, scale=scale
            )
        if num_queries == 1:
            return out.reshape(1, -1)
        return out.permute(2, 0, 1, 3).reshape(num_queries, -1)

    def _attend_by_scores(
        self, query: Tensor, keys: Tensor, values: Tensor, *, scale: float, sinks: Tensor | None
    ) -> Tensor:
        """Attends with capped scores or with sinks, which SDPA lacks; one K and V head at a time,
        to bound memory.

        Args:
            sinks: [num_kv_heads, as the scores of a head but for the keys].
        """
        out = torch.empty_like(query)
        for head in range(self.shape.num_kv_heads):
            scores = (query[head] @ keys[head].transpose(-1, -2)).float()
            if self.shape.soft_cap is not None:
                _soft_cap(scores, cap=self.shape.soft_cap, scale=scale)
            else:
                scores *= scale
            if self.mask is not None:
                scores += self.mask
            shares = _softmax(scores, None if sinks is None else sinks[head])
            out[head] = shares.to(query.dtype) @ values[head]
        return out


@dataclass(frozen=True, slots=True)
class _DecodeWork:
    """A group of sequences with one query each."""

    rows: slice | Tensor
    gather: Tensor
    """[2 * num_seqs * num_kv_heads * num_blocks] int64."""
    mask: Tensor
    """[num_seqs * num_kv_heads, 1, num_keys], added to the scores."""
    gathered: Tensor
    """[len(gather), elements of a row]: scratch, the same for every layer."""
    shape: AttentionShape

    def attend(self, query: Tensor, cache: Tensor, k_scale: float, sinks: Tensor | None) -> Tensor:
        batch, num_keys = self.mask.shape[0], self.mask.shape[2]
        scale = k_scale * self.shape.scale
        torch.index_select(cache, 0, self.gather, out=self.gathered)
        gathered = _decoded(self.gathered, self.shape)
        keys, values = gathered.view(2, batch, num_keys, self.shape.head_size)
        query = query.reshape(batch, -1, self.shape.head_size)
        keys = keys.transpose(1, 2)
        if self.shape.soft_cap is not None:
            scores = torch.bmm(query, keys)
            _soft_cap(scores, cap=self.shape.soft_cap, scale=scale).add_(self.mask)
        else:
            scores = torch.baddbmm(self.mask, query, keys, alpha=scale)
        if sinks is not None:
            sinks = sinks.repeat(batch // self.shape.num_kv_heads, 1)
        out = torch.bmm(_softmax(scores, sinks), values)
        return out.view(batch // self.shape.num_kv_heads, -1)


def _decoded(rows: Tensor, shape: AttentionShape) -> Tensor:
    """Returns K and V of rows of a cache, [num_rows, block_size * head_size], in the type of
    activations; without the scales of E4M3."""
    if not shape.has_int8_cache:
        return rows.to(shape.dtype)
    codes = rows[:, : shape.block_size * shape.head_size].view(torch.int8)
    scales = rows[:, shape.codes_bytes :].view(torch.float32)
    values = codes.view(-1, shape.block_size, shape.head_size) * scales[..., None]
    return values.flatten(1).to(shape.dtype)


def _soft_cap(scores: Tensor, *, cap: float, scale: float) -> Tensor:
    """cap * tanh(scale * scores / cap), in place."""
    return scores.mul_(scale / cap).tanh_().mul_(cap)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Returns the shares of the keys, the last dimension of `scores`.

    Args:
        sinks: a score beside those of the keys, with all dimensions but that one.
    """
    if sinks is None:
        return scores.softmax(dim=-1)
    beside = sinks[..., None].to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, beside), dim=-1).softmax(dim=-1)[..., :-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One step."""

    shape: AttentionShape
    work_of_layer: Sequence[list[_Work]]
    blocks: Tensor
    offsets: Tensor
    rows: list[Tensor]
    caches: list[LayerCache]

    def __call__(self, query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
        return self.attend_with_sinks(query, key_value, None, layer=layer)

    def attend_with_sinks(
        self, query: Tensor, key_value: Tensor, sinks: Tensor | None, *, layer: int
    ) -> Tensor:
        if sinks is not None:
            sinks = sinks.view(self.shape.num_kv_heads, -1)
        cache, scales = self.caches[layer].kv, self.caches[layer].scales
        if scales is not None:
            key_value, of_tokens = to_int8(key_value)
            scales[self.blocks, :, :, self.offsets] = of_tokens
        if self.shape.fp8_scales is None:
            cache[self.blocks, :, :, self.offsets] = key_value
            return self._attend(query, layer, sinks, k_scale=1.0)
        k_scale, v_scale = self.shape.fp8_scales[layer]
        for side, scale in enumerate((k_scale, v_scale)):
            codes = to_cache(key_value[:, side], self.shape.kv_dtype, scale)
            cache[self.blocks, side, :, self.offsets] = codes
        return self._attend(query, layer, sinks, k_scale=k_scale).mul_(v_scale)

    def _attend(self, query: Tensor, layer: int, sinks: Tensor | None, *, k_scale: float) -> Tensor:
        cache, works = self.rows[layer], self.work_of_layer[layer]
        if len(works) == 1 and isinstance(works[0].rows, slice):
            return works[0].attend(query, cache, k_scale, sinks)
        out = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
        for work in works:
            out[work.rows] = work.attend(query[work.rows], cache, k_scale, sinks)
        return out


class TorchAttention:
    """Satisfies `AttentionBackend`."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._rows_per_layer = 2 * shape.num_kv_heads
        self._rows_per_block = shape.num_layers * self._rows_per_layer
        # A row of codes with scales is in bytes.
        self._row_dtype = torch.uint8 if shape.has_int8_cache else shape.kv_dtype
        self._row_elements = shape.head_bytes // self._row_dtype.itemsize
        self._pool = torch.empty(0)
        self._rows: list[Tensor] = []
        self._caches: list[LayerCache] = []

    @property
    def block_bytes(self) -> int:
        return self._shape.block_bytes

    def bind(self, pool: Tensor) -> None:
        self._pool = pool
        rows = pool.view(self._row_dtype).view(-1, self._row_elements)
        # The same row numbers serve every layer: a layer's view begins at its own first row.
        num_layers = self._shape.num_layers
        self._rows = [rows[layer * self._rows_per_layer :] for layer in range(num_layers)]
        self._caches = self._shape.caches(pool)

    def plan(self, batch: Batch) -> _Plan:
        self._clear_opened_blocks(batch)
        size = self._shape.block_size
        of_window = {
            window: [self._work(item) for item in plan_work(batch, self._shape, window)]
            for window in set(self._shape.sliding_windows)
        }
        return _Plan(
            shape=self._shape,
            work_of_layer=[of_window[window] for window in self._shape.sliding_windows],
            blocks=self._tensor(batch.slot_mapping // size),
            offsets=self._tensor(batch.slot_mapping % size),
            rows=self._rows,
            caches=self._caches,
        )

    def _clear_opened_blocks(self, batch: Batch) -> None:
        """Zeroes blocks that this step begins and does not fill.

        Padding is masked, but 0 times a NaN that a failed sequence left there is NaN.
        """
        size = self._shape.block_size
        computed = batch.context_lens - np.diff(batch.query_start)
        last = (batch.context_lens - 1) // size
        opened = (batch.context_lens % size != 0) & (last * size >= computed)
        for block in batch.block_tables[np.nonzero(opened)[0], last[opened]].tolist():
            self._pool[block].zero_()

    def _work(self, item: Chunk | DecodeGroup) -> _Work:
        return self._decode_work(item) if isinstance(item, DecodeGroup) else self._chunk_work(item)

    def _chunk_work(self, item: Chunk) -> _ChunkWork:
        num_keys = item.keys.stop - item.keys.start
        is_causal = item.num_queries == num_keys and item.window is None and num_keys > 1
        is_causal &= not self._shape.needs_scores
        mask = None
        if item.num_queries > 1 and not is_causal:
            visible = attention_mask(
                num_queries=item.num_queries,
                num_keys=num_keys,
                sliding_window=item.window,
                device=self._shape.device,
            )
            mask = self._additive(visible)
        return _ChunkWork(
            rows=slice(item.start, item.start + item.num_queries),
            gather=self._gather(item.blocks[None]),
            keys=item.keys,
            mask=mask,
            is_causal=is_causal,
            shape=self._shape,
        )

    def _decode_work(self, item: DecodeGroup) -> _DecodeWork:
        mask = self._additive(self._tensor(item.visible))
        gather = self._gather(item.blocks)
        return _DecodeWork(
            rows=item.rows if isinstance(item.rows, slice) else self._tensor(item.rows),
            gather=gather,
            gathered=self._pool.new_empty((len(gather), self._row_elements), dtype=self._row_dtype),
            mask=mask.repeat_interleave(self._shape.num_kv_heads, dim=0)[:, None],
            shape=self._shape,
        )

    def _additive(self, visible: Tensor) -> Tensor:
        mask = torch.zeros(visible.shape, dtype=self._shape.dtype, device=visible.device)
        return mask.masked_fill_(~visible, float("-inf"))

    def _gather(self, blocks: NDArray[np.int64]) -> Tensor:
        """Rows of layer 0: [num_seqs, num_blocks] to flat (K and V, sequence, head, block)."""
        heads = np.arange(self._shape.num_kv_heads)
        sides = np.arange(2) * self._shape.num_kv_heads
        within = sides[:, None, None, None] + heads[:, None]
        return self._tensor((blocks[:, None] * self._rows_per_block + within).ravel())

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._shape.device, non_blocking=True)

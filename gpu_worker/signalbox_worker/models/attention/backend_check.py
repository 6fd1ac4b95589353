"""Tries a backend beside plain PyTorch on the device at hand, before `auto` trusts it there.

Two sequences are prefilled together, go on with a chunk beside a decode, and decode; with random
queries, keys and values, once for each kind of layer (full, or with a window), and with rotation,
which a backend may do itself. Then all of it again with other data in other blocks, because what a
step has left behind may be what the next one fails by.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signalbox_kernels.torch import attention, kv_cache, row_ops
from signalbox_worker.batch.batch import Batch
from signalbox_worker.models.attention.backend import AttentionBackend, AttentionShape
from signalbox_worker.models.attention.trial_batches import Span, consecutive_blocks, trial_batch
from signalbox_worker.models.layers import AttentionPlan, HeadNorms, Placement, RMSNorm
from signalbox_worker.models.layers.rotary import Angles

_LENGTHS = ((0, 0), (37, 5), (57, 6), (58, 7))
"""Tokens of both sequences before the first step and after each."""
_TOLERANCE = 0.05
"""Tolerance for values around 1: wide enough for bfloat16 and TF32, far below the effect of a
wrong index."""


def fault_of(
    factory: Callable[[AttentionShape], AttentionBackend], shape: AttentionShape
) -> str | None:
    """Returns what is wrong with the backend that `factory` makes, or None.

    That is all that a compiler or a driver said, which may be many lines.
    """
    try:
        return wrong_results(factory, shape)
    except Exception as error:  # whatever a compiler or a driver raises
        return f"{type(error).__name__}: {error}"


def wrong_results(
    factory: Callable[[AttentionShape], AttentionBackend], shape: AttentionShape
) -> str | None:
    """Returns by how much the backend's results are off, if they are; raises what it raises."""
    return fault_of_difference(_largest_difference(factory, one_layer_of_each_kind(shape)))


def fault_of_difference(worst: float) -> str | None:
    """Returns the fault of results that differ by so much at most, or None; NaN is one."""
    return None if worst <= _TOLERANCE else f"its results are off by {worst:.2g}"


def one_layer_of_each_kind(shape: AttentionShape) -> AttentionShape:
    """Returns the shape with one layer for each of its windows."""
    windows = tuple(dict.fromkeys(shape.sliding_windows))
    scales = None if shape.fp8_scales is None else ((0.5, 2.0),) * len(windows)
    return replace(shape, num_layers=len(windows), sliding_windows=windows, fp8_scales=scales)


class PlainAttention:
    """The reference of the ops, whatever is registered for the device."""

    def __init__(self, shape: AttentionShape, num_blocks: int) -> None:
        self._shape = shape
        sizes = (num_blocks, 2, shape.block_size, shape.num_kv_heads, shape.head_size)
        self._caches = [
            torch.zeros(sizes, dtype=shape.kv_dtype, device=shape.device)
            for _ in range(shape.num_layers)
        ]
        self._scales = [
            torch.zeros(sizes[:-1], device=shape.device) if shape.has_int8_cache else None
            for _ in range(shape.num_layers)
        ]

    def store(self, batch: Batch, key_value: Tensor, *, layer: int) -> None:
        """Writes the K and V of a step."""
        key, value = key_value.unbind(dim=1)
        slot_mapping = self._tensor(batch.slot_mapping)
        scales = self._shape.kv_scales(layer, self._scales[layer])
        kv_cache.reshape_and_cache(key, value, self._caches[layer], slot_mapping, **scales)

    def attend(self, batch: Batch, query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
        """Writes them, and returns [num_tokens, num_heads * head_size] float32."""
        self.store(batch, key_value, layer=layer)
        out = attention.paged_attention(
            query,
            self._caches[layer],
            query_start=self._tensor(batch.query_start),
            context_lens=self._tensor(batch.context_lens),
            block_tables=self._tensor(batch.block_tables),
            scale=self._shape.scale,
            is_causal=not self._shape.is_bidirectional,
            sliding_window=self._shape.sliding_windows[layer],
            soft_cap=self._shape.soft_cap,
            **self._shape.kv_scales(layer, self._scales[layer]),
        )
        return out.flatten(1).float()

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._shape.device)


def _largest_difference(
    factory: Callable[[AttentionShape], AttentionBackend], shape: AttentionShape
) -> float:
    """Returns NaN where a result is none."""
    backend = factory(shape)
    tables = consecutive_blocks(_LENGTHS[-1], shape.block_size)
    num_blocks = sum(map(len, tables))
    pool = torch.zeros(num_blocks, backend.block_bytes, dtype=torch.uint8, device=shape.device)
    backend.bind(pool)
    worst = 0.0
    for seed in range(2):
        plain = PlainAttention(shape, num_blocks)
        generator = torch.Generator().manual_seed(seed)
        for starts, ends in pairwise(_LENGTHS):
            batch = trial_batch(shape, list(map(Span, starts, ends, tables)))
            plan = backend.plan(batch)
            for layer in range(shape.num_layers):
                difference = _difference(plan, plain, batch, shape, layer, generator)
                worst = float(np.maximum(worst, difference))
        tables = [num_blocks - 1 - table for table in tables]
    return worst


def _difference(
    plan: AttentionPlan,
    plain: PlainAttention,
    batch: Batch,
    shape: AttentionShape,
    layer: int,
    generator: torch.Generator,
) -> float:
    """Returns the largest difference in one layer of one step, without rotation and with it."""
    query, key_value = (
        torch.randn(len(batch.token_ids), *size, generator=generator).to(shape.device, shape.dtype)
        for size in ((shape.num_heads, shape.head_size), (2, shape.num_kv_heads, shape.head_size))
    )
    angles = _angles(query)
    plainly = plan(query.clone(), key_value.clone(), layer=layer)
    differences = [plainly - plain.attend(batch, query, key_value, layer=layer)]
    for norms in (None, _norms(shape)):
        rotated = _attend_rotated(plan, query.clone(), key_value.clone(), angles, layer, norms)
        expected_query, expected_kv = query.clone(), key_value.clone()
        _rotate_plainly(expected_query, expected_kv[:, 0], angles, norms)
        differences.append(rotated - plain.attend(batch, expected_query, expected_kv, layer=layer))
    return float(torch.stack(differences).abs().max())


def _attend_rotated(
    plan: AttentionPlan,
    query: Tensor,
    key_value: Tensor,
    angles: Angles,
    layer: int,
    norms: HeadNorms | None,
) -> Tensor:
    """Attends as layers do: through the plan's own rotation, or the one that is registered."""
    attend_rotated = getattr(plan, "attend_rotated", None)
    if attend_rotated is not None:
        out: Tensor = attend_rotated(query, key_value, angles, layer=layer, norms=norms)
        return out
    for heads, norm in zip((query, key_value[:, 0]), norms or (None, None), strict=True):
        if norm is not None:
            heads.copy_(norm(heads))
        angles.rotate(heads)
    return plan(query, key_value, layer=layer)


def _rotate_plainly(query: Tensor, key: Tensor, angles: Angles, norms: HeadNorms | None) -> None:
    """Norms and rotates heads in place, by the reference."""
    for heads, norm in zip((query, key), norms or (None, None), strict=True):
        if norm is not None:
            heads.copy_(row_ops.rms_norm(heads, norm.weight, eps=norm.eps))
        row_ops.rotary_embedding(heads, *angles)


def _norms(shape: AttentionShape) -> HeadNorms:
    """Returns norms that leave heads near 1, differently for Q and K."""
    placement = Placement(shape.device, shape.dtype)
    query, key = (RMSNorm(shape.head_size, eps=1e-6, placement=placement) for _ in range(2))
    for norm, low in ((query, 0.5), (key, 1.0)):
        norm.load_weight(torch.linspace(low, low + 0.5, shape.head_size))
    return HeadNorms(query, key)


def _angles(query: Tensor) -> Angles:
    half = torch.linspace(0.0, 3.0, query.shape[2] // 2, dtype=torch.float32)
    cos, sin = half.cos(), half.sin()
    return Angles(
        *(
            torch.cat(halves).expand(len(query), 1, -1).to(query)
            for halves in ((cos, cos), (-sin, sin))
        )
    )

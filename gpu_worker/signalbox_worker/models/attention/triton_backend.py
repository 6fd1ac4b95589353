"""The attention backend of CUDA, in Triton: one launch a layer for any mix of sequences.

Inside a block: [num_layers, 2, num_kv_heads, block_size, head_size], and scales of tokens behind
each head's K and V, as in `torch_backend.py`, so that a head's K of one block is one run of bytes.
A step's indexes go to the device once. Nothing is cleared: the kernel reads no slot past a context,
so what a failed sequence left there is unseen.

Runs on a CPU under Triton's interpreter, for tests; it has never run on a GPU.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signalbox_kernels.triton import MAX_GROUP, MAX_HEAD_SIZE
from signalbox_kernels.triton.attention.paged_attention import plan_attention
from signalbox_kernels.triton.attention.paged_kernel import attend
from signalbox_kernels.triton.attention.work import Work
from signalbox_kernels.triton.launch import is_interpreted
from signalbox_kernels.triton.reshape_and_cache import reshape_and_cache
from signalbox_kernels.triton.rotary import rotary_and_cache
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.input_transfer import StepInputs
from signalbox_worker.device.device_choice import compute_capability
from signalbox_worker.models.attention.backend import AttentionShape, KVScales
from signalbox_worker.models.layers import HeadNorms
from signalbox_worker.models.layers.rotary import Angles

_DEPENDENT = (9, 0)
"""First compute capability with programmatic dependent launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One step; the tensors are on the device, shaped as `ops.paged_attention` says."""

    shape: AttentionShape
    caches: list[Tensor]
    """[num_layers]: each layer's view of the pool."""
    token_scales: list[Tensor | None]
    """[num_layers]: those of K and V in int8."""
    slot_mapping: Tensor
    block_tables: Tensor
    work: dict[int | None, Work]
    """Division of the step among programs, for the layers of each sliding window."""
    joins_inside: bool
    dependent: bool

    def __call__(self, query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
        key, value = key_value.unbind(dim=1)
        scales = self._scales(layer)
        reshape_and_cache(
            key,
            value,
            self.caches[layer],
            self.slot_mapping,
            **scales,
            dependent=self.dependent,
        )
        return self._attend(query, layer)

    def _attend(self, query: Tensor, layer: int) -> Tensor:
        out = attend(
            query,
            self.caches[layer],
            self.work[self.shape.sliding_windows[layer]],
            block_tables=self.block_tables,
            scale=self.shape.scale,
            soft_cap=self.shape.soft_cap,
            **self._scales(layer),
            joins_inside=self.joins_inside,
            dependent=self.dependent,
        )
        return out.flatten(1)

    def _scales(self, layer: int) -> KVScales:
        return self.shape.kv_scales(layer, self.token_scales[layer])


class _FusedPlan(_Plan):
    """Norms and rotates heads on the way into the cache; satisfies `layers.RotaryAttentionPlan`."""

    def attend_rotated(
        self,
        query: Tensor,
        key_value: Tensor,
        angles: Angles,
        *,
        layer: int,
        norms: HeadNorms | None,
    ) -> Tensor:
        rotary_and_cache(
            query,
            key_value,
            *angles,
            self.caches[layer],
            self.slot_mapping,
            norms=None if norms is None else norms.weights,
            eps=0.0 if norms is None else norms.query.eps,
            **self._scales(layer),
            dependent=self.dependent,
        )
        return self._attend(query, layer)


class TritonAttention:
    """Satisfies `AttentionBackend`."""

    def __init__(
        self, shape: AttentionShape, *, is_plain: bool = False, dependent: bool = False
    ) -> None:
        """Makes the backend for a shape.

        Args:
            is_plain: fuses nothing: norms, rotation, the cache's writes and the join of shares are
                launches of their own.
            dependent: see `launch_options`.
        """
        if shape.device.type == "cpu" and not is_interpreted():
            raise ValueError(
                "attention_backend 'triton' cannot run on a CPU; use 'torch', "
                "or set TRITON_INTERPRET=1 to interpret its kernels, slowly"
            )
        if shape.head_size > MAX_HEAD_SIZE:
            raise ValueError(
                f"attention_backend 'triton' takes heads of up to {MAX_HEAD_SIZE} elements, not "
                f"{shape.head_size}; use 'torch'"
            )
        self._shape = shape
        if shape.num_heads > MAX_GROUP * shape.num_kv_heads:
            raise ValueError(
                f"attention_backend 'triton' takes up to {MAX_GROUP} heads on one of K and V, not "
                f"{shape.num_heads} on {shape.num_kv_heads}; use 'torch'"
            )
        if dependent and (compute_capability(shape.device) or _DEPENDENT) < _DEPENDENT:
            raise ValueError(
                "attention_backend 'triton_pdl' takes a GPU of compute capability 9.0 or later; "
                "use 'triton'"
            )
        self._is_plain, self._dependent = is_plain, dependent
        self._caches: list[Tensor] = []
        self._token_scales: list[Tensor | None] = []

    @property
    def block_bytes(self) -> int:
        return self._shape.block_bytes

    def bind(self, pool: Tensor) -> None:
        caches = self._shape.caches(pool)
        self._caches = [each.kv.transpose(2, 3) for each in caches]
        self._token_scales = [
            None if each.scales is None else each.scales.transpose(2, 3) for each in caches
        ]

    def plan_on_device(self, inputs: StepInputs) -> _Plan:
        """Satisfies `DevicePlanning`: kernels find out the rest from the tensors themselves."""
        return self._plan(
            inputs.slot_mapping,
            inputs.query_start,
            inputs.context_lens,
            inputs.block_tables,
            most_queries=inputs.most_queries,
        )

    def plan(self, batch: Batch) -> _Plan:
        return self._plan(
            self._tensor(batch.slot_mapping),
            self._tensor(batch.query_start),
            self._tensor(batch.context_lens),
            self._tensor(batch.block_tables),
            most_queries=batch.most_queries,
        )

    def _plan(
        self,
        slot_mapping: Tensor,
        query_start: Tensor,
        context_lens: Tensor,
        block_tables: Tensor,
        *,
        most_queries: int,
    ) -> _Plan:
        shape = self._shape
        work = {
            window: plan_attention(
                query_start,
                context_lens,
                num_tokens=len(slot_mapping),
                most_queries=most_queries,
                num_heads=shape.num_heads,
                num_kv_heads=shape.num_kv_heads,
                head_size=shape.head_size,
                dtype=shape.dtype,
                is_causal=not shape.is_bidirectional,
                sliding_window=window,
                has_token_scales=shape.has_int8_cache,
            )
            for window in dict.fromkeys(shape.sliding_windows)
        }
        make = _Plan if self._is_plain else _FusedPlan
        return make(
            shape=shape,
            caches=self._caches,
            token_scales=self._token_scales,
            slot_mapping=slot_mapping,
            block_tables=block_tables,
            work=work,
            joins_inside=not self._is_plain,
            dependent=self._dependent,
        )

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(
            self._shape.device, non_blocking=True
        )

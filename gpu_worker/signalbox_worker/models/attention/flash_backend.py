"""Attention by flash-attn where it is installed: version 2, 3 (Hopper), or 4 (`flash_attn.cute`).

FlashAttention (Dao, 2023; Shah et al., 2024) over blocks: each version takes queries of all
sequences in one row, and finds their keys through the block tables. K and V are written by our own
ops first. Inside a block: [num_layers, 2, block_size, num_kv_heads, head_size].

Block sizes: version 2 takes multiples of 256. The others load a block that is as long as one of
their tiles whole, slots past the context included, and 0 times a NaN that a failed sequence left
there is NaN; of blocks of 16 and 32 they load what they use.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signalbox_kernels import ops
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.input_transfer import StepInputs
from signalbox_worker.models.attention.backend import AttentionShape
from signalbox_worker.models.attention.flash_kernels import (
    Attend,
    FlashIndexes,
    FlashKernel,
    FlashRules,
    why_not,
)
from signalbox_worker.models.layers import HeadNorms
from signalbox_worker.models.layers.rotary import Angles


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One step."""

    module: Any
    attend: Attend
    rules: list[FlashRules]
    """[num_layers], as are the caches: each layer's view of the pool, K and V together."""
    caches: list[Tensor]
    slot_mapping: Tensor
    at: FlashIndexes

    def __call__(self, query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
        key, value = key_value.unbind(dim=1)
        ops.reshape_and_cache(key, value, self.caches[layer], self.slot_mapping)
        return self._attend(query, layer)

    def attend_rotated(
        self,
        query: Tensor,
        key_value: Tensor,
        angles: Angles,
        *,
        layer: int,
        norms: HeadNorms | None,
    ) -> Tensor:
        """Satisfies `layers.RotaryAttentionPlan`."""
        ops.rotary_and_cache(
            query,
            key_value,
            *angles,
            self.caches[layer],
            self.slot_mapping,
            norms=None if norms is None else norms.weights,
            eps=0.0 if norms is None else norms.query.eps,
        )
        return self._attend(query, layer)

    def _attend(self, query: Tensor, layer: int) -> Tensor:
        key, value = self.caches[layer].unbind(dim=1)
        out = self.attend(self.module, query, key, value, self.at, self.rules[layer])
        attended: Tensor = out[0] if isinstance(out, tuple) else out  # 4 gives the sums as well
        return attended.flatten(1)


class FlashAttention:
    """Satisfies `AttentionBackend` and `DevicePlanning`."""

    def __init__(self, shape: AttentionShape, kernel: FlashKernel) -> None:
        """Raises ValueError where the kernel is missing or does not take the shape."""
        if (reason := why_not(kernel, shape)) is not None:
            raise ValueError(f"attention_backend {kernel.name!r} {reason}")
        self._shape, self._kernel = shape, kernel
        self._module = import_module(kernel.module)
        self._caches: list[Tensor] = []
        self._rules = [
            FlashRules(scale=shape.scale, window=window, soft_cap=shape.soft_cap or 0.0)
            for window in shape.sliding_windows
        ]

    @property
    def block_bytes(self) -> int:
        return self._shape.block_bytes

    def bind(self, pool: Tensor) -> None:
        shape = self._shape
        blocks = pool.view(shape.dtype).view(
            len(pool), shape.num_layers, 2, shape.block_size, shape.num_kv_heads, shape.head_size
        )
        self._caches = list(blocks.unbind(dim=1))

    def plan(self, batch: Batch) -> _Plan:
        return self._plan(
            self._tensor(batch.query_start),
            self._tensor(batch.context_lens),
            self._tensor(batch.block_tables),
            self._tensor(batch.slot_mapping),
            most_queries=batch.most_queries,
        )

    def plan_on_device(self, inputs: StepInputs) -> _Plan:
        """Satisfies `DevicePlanning`."""
        return self._plan(
            inputs.query_start,
            inputs.context_lens,
            inputs.block_tables,
            inputs.slot_mapping,
            most_queries=inputs.most_queries,
        )

    def _plan(
        self,
        query_start: Tensor,
        context_lens: Tensor,
        block_tables: Tensor,
        slot_mapping: Tensor,
        *,
        most_queries: int,
    ) -> _Plan:
        key_start = torch.zeros(len(query_start), dtype=torch.int32, device=query_start.device)
        torch.cumsum(context_lens, 0, dtype=torch.int32, out=key_start[1:])
        at = FlashIndexes(
            query_start=query_start.to(torch.int32),
            context_lens=context_lens.to(torch.int32),
            key_start=key_start,
            block_tables=block_tables,
            most_queries=most_queries,
            most_keys=block_tables.shape[1] * self._shape.block_size,
        )
        return _Plan(
            module=self._module,
            attend=self._kernel.attend,
            rules=self._rules,
            caches=self._caches,
            slot_mapping=slot_mapping,
            at=at,
        )

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(
            self._shape.device, non_blocking=True
        )

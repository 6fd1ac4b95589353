"""Attention by flash-attn where it is installed: version 2, 3 (Hopper), or 4 (`flash_attn.cute`).

FlashAttention (Dao, 2023; Shah et al., 2024) over blocks: each version takes queries of all
sequences in one row, and finds their keys through the block tables. K and V are written by our own
ops first. Inside a block: [num_layers, 2, block_size, num_kv_heads, head_size].

Block sizes: version 2 takes multiples of 256. The others load a block that is as long as one of
their tiles whole, slots past the context included, and 0 times a NaN that a failed sequence left
there is NaN; of blocks of 16 and 32 they load what they use.

The calls follow the signatures of flash-attn 2.8, of hopper/flash_attn_interface.py, and of
flash-attn-4 4.0.0 (b36). They are tested against stand-ins; none has run on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.attention.backend import AttentionShape
from gpu_worker.batch.batch import Batch
from gpu_worker.device.input_transfer import StepInputs
from gpu_worker.layers.rotary import Angles
from signalbox_kernels import ops

_MAX_HEAD_SIZE = 256


class FlashIndexes(NamedTuple):
    """A step as the kernels want it; all int32."""

    query_start: Tensor
    """[num_seqs + 1]."""
    context_lens: Tensor
    """[num_seqs]."""
    key_start: Tensor
    """[num_seqs + 1], sums of context_lens."""
    block_tables: Tensor
    most_queries: int
    """Upper bound on the queries of a sequence; most_keys is one too."""
    most_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashRules:
    """Options of a layer beyond plain causal attention."""

    scale: float
    window: int | None
    soft_cap: float


Attend = Callable[[Any, Tensor, Tensor, Tensor, FlashIndexes, FlashRules], Any]
"""Calls a module with queries, one layer's K and V in blocks, indexes and rules."""


def _attend_2(
    module: Any, query: Tensor, key: Tensor, value: Tensor, at: FlashIndexes, rules: FlashRules
) -> Any:
    return module.flash_attn_varlen_func(
        query,
        key,
        value,
        cu_seqlens_q=at.query_start,
        cu_seqlens_k=at.key_start,
        max_seqlen_q=at.most_queries,
        max_seqlen_k=at.most_keys,
        softmax_scale=rules.scale,
        causal=True,
        window_size=(-1, -1) if rules.window is None else (rules.window - 1, 0),
        softcap=rules.soft_cap,
        block_table=at.block_tables,
    )


def _attend_3(
    module: Any, query: Tensor, key: Tensor, value: Tensor, at: FlashIndexes, rules: FlashRules
) -> Any:
    return module.flash_attn_with_kvcache(
        query,
        key,
        value,
        cache_seqlens=at.context_lens,
        page_table=at.block_tables,
        cu_seqlens_q=at.query_start,
        max_seqlen_q=at.most_queries,
        softmax_scale=rules.scale,
        causal=True,
        window_size=(-1, -1) if rules.window is None else (rules.window - 1, 0),
        softcap=rules.soft_cap,
    )


def _attend_4(
    module: Any, query: Tensor, key: Tensor, value: Tensor, at: FlashIndexes, rules: FlashRules
) -> Any:
    return module.flash_attn_varlen_func(
        query,
        key,
        value,
        cu_seqlens_q=at.query_start,
        max_seqlen_q=at.most_queries,
        max_seqlen_k=at.most_keys,
        seqused_k=at.context_lens,
        page_table=at.block_tables,
        softmax_scale=rules.scale,
        causal=True,
        window_size=(None, None) if rules.window is None else (rules.window - 1, 0),
        softcap=rules.soft_cap,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashKernel:
    """One version of flash-attn."""

    name: str
    module: str
    package: str
    """Package that installs the module."""
    generations: tuple[int, ...]
    """Major compute capabilities that it pages on."""
    block_sizes: tuple[int, ...]
    attend: Attend

    def is_installed(self) -> bool:
        """Returns whether the module can be found; its parent may be missing too."""
        try:
            return find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False


FLASH_KERNELS = (
    FlashKernel(
        name="flash_attn_4",
        module="flash_attn.cute",
        package="flash-attn-4",
        generations=(9, 10, 11),
        block_sizes=(16, 32),
        attend=_attend_4,
    ),
    FlashKernel(
        name="flash_attn_3",
        module="flash_attn_interface",
        package="flash-attn's hopper directory",
        generations=(9,),
        block_sizes=(16, 32),
        attend=_attend_3,
    ),
    FlashKernel(
        name="flash_attn_2",
        module="flash_attn",
        package="flash-attn",
        generations=(8, 9, 10, 11, 12),
        block_sizes=(256,),
        attend=_attend_2,
    ),
)
"""The fastest first."""


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
        self, query: Tensor, key_value: Tensor, angles: Angles, *, layer: int
    ) -> Tensor:
        """Satisfies `layers.RotaryAttentionPlan`."""
        ops.rotary_and_cache(query, key_value, *angles, self.caches[layer], self.slot_mapping)
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
        if (reason := _why_not(kernel, shape)) is not None:
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
        shape = self._shape
        elements = 2 * shape.num_kv_heads * shape.block_size * shape.head_size
        return shape.num_layers * elements * shape.dtype.itemsize

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
            most_queries=int(np.diff(batch.query_start).max()),
        )

    def plan_on_device(self, inputs: StepInputs) -> _Plan:
        """Satisfies `DevicePlanning`: each sequence has a query, which bounds what one can have."""
        return self._plan(
            inputs.query_start,
            inputs.context_lens,
            inputs.block_tables,
            inputs.slot_mapping,
            most_queries=len(inputs.token_ids) - len(inputs.context_lens) + 1,
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


def _why_not(kernel: FlashKernel, shape: AttentionShape) -> str | None:
    """Says what keeps a kernel from a shape, with the remedy."""
    if not kernel.is_installed():
        return f"is not installed; install {kernel.package}, or use 'auto'"
    generation = _generation(shape.device)
    if generation not in kernel.generations:
        where = "no CUDA device" if generation is None else f"compute capability {generation}"
        return f"does not page on {where}; use 'auto'"
    if shape.dtype not in (torch.float16, torch.bfloat16):
        return f"takes 16 bits, not {shape.dtype}; use dtype bfloat16, or 'auto'"
    if shape.head_size % 8 or shape.head_size > _MAX_HEAD_SIZE:
        return (
            f"takes heads of up to {_MAX_HEAD_SIZE} elements in multiples of 8, not "
            f"{shape.head_size}; use 'auto'"
        )
    return None


def _generation(device: torch.device) -> int | None:
    """The device's major compute capability; None where it is not CUDA's."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else None

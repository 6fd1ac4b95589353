"""flash-attn's versions and FlashInfer: how each is called, on which devices and shapes it runs.

The calls follow the signatures of flash-attn 2.8.4, of hopper/flash_attn_interface.py (3.0.0), of
flash-attn-4 4.0.0b27, and of FlashInfer 0.6.18, which are recorded beside the tests. None has run
on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from signalbox_worker.models.attention.backend import AttentionShape

_MAX_HEAD_SIZE = 256
_WORKSPACE_BYTES = 128 << 20


class FlashIndexes(NamedTuple):
    """The indexes of a step that the kernels take; all int32."""

    query_start: Tensor
    """[num_seqs + 1]."""
    context_lens: Tensor
    """[num_seqs]."""
    key_start: Tensor
    """[num_seqs + 1], sums of context_lens."""
    block_tables: Tensor
    most_queries: int
    """Upper bound on the queries of a sequence; `most_keys` is that on its keys."""
    most_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashRules:
    """Options of a layer beyond plain causal attention."""

    scale: float
    window: int | None
    soft_cap: float


Attend = Callable[[Any, Tensor, Tensor, Tensor, FlashIndexes, FlashRules], Any]
"""Calls a module with queries, one layer's K and V in blocks, indexes and rules."""


def _shared(at: FlashIndexes, rules: FlashRules, *, no_limit: int | None) -> dict[str, Any]:
    """Returns the arguments that all versions have under the same names."""
    window = (no_limit, no_limit) if rules.window is None else (rules.window - 1, 0)
    return {
        "cu_seqlens_q": at.query_start,
        "max_seqlen_q": at.most_queries,
        "softmax_scale": rules.scale,
        "causal": True,
        "window_size": window,
        "softcap": rules.soft_cap,
    }


def _attend_2(
    module: Any, query: Tensor, key: Tensor, value: Tensor, at: FlashIndexes, rules: FlashRules
) -> Any:
    return module.flash_attn_varlen_func(
        query,
        key,
        value,
        cu_seqlens_k=at.key_start,
        max_seqlen_k=at.most_keys,
        block_table=at.block_tables,
        **_shared(at, rules, no_limit=-1),
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
        **_shared(at, rules, no_limit=-1),
    )


def _attend_4(
    module: Any, query: Tensor, key: Tensor, value: Tensor, at: FlashIndexes, rules: FlashRules
) -> Any:
    return module.flash_attn_varlen_func(
        query,
        key,
        value,
        max_seqlen_k=at.most_keys,
        seqused_k=at.context_lens,
        page_table=at.block_tables,
        **_shared(at, rules, no_limit=None),
    )


def _attend_flashinfer(
    module: Any, query: Tensor, key: Tensor, value: Tensor, at: FlashIndexes, rules: FlashRules
) -> Any:
    """Calls the functions of compute capability 10, which alone need no plan of the host's."""
    shared = {
        "query": query,
        "kv_cache": (key, value),
        "workspace_buffer": _workspace(query.device),
        "block_tables": at.block_tables,
        "seq_lens": at.context_lens,
        "bmm1_scale": rules.scale,
        "bmm2_scale": 1.0,
        "kv_layout": "NHD",
    }
    if at.most_queries == 1:
        return module.decode.trtllm_batch_decode_with_kv_cache(
            max_seq_len=at.most_keys, backend="trtllm-gen", **shared
        )
    return module.prefill.trtllm_batch_context_with_kv_cache(
        max_q_len=at.most_queries,
        max_kv_len=at.most_keys,
        batch_size=len(at.context_lens),
        cum_seq_lens_q=at.query_start,
        cum_seq_lens_kv=at.key_start,
        **shared,
    )


@cache
def _workspace(device: torch.device) -> Tensor:
    """Returns FlashInfer's memory for sums of shares, which is zero at first; all layers use it."""
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashKernel:
    """One version of flash-attn, or FlashInfer."""

    name: str
    module: str
    package: str
    """Package that installs the module."""
    generations: tuple[int, ...]
    """Major compute capabilities that it pages on."""
    block_sizes: tuple[int, ...]
    attend: Attend
    head_sizes: tuple[int, ...] = ()
    """Sizes of heads that it takes; empty for all multiples of 8 up to 256."""
    caps_scores: bool = True
    has_windows: bool = True

    def is_installed(self) -> bool:
        """Returns whether the module can be found; its parent may be missing, or broken.

        flash-attn-4 alone leaves `flash_attn` a folder without a module, which has no origin.
        """
        try:
            spec = find_spec(self.module)
            return spec is not None and spec.origin is not None
        except ModuleNotFoundError:
            return False
        except Exception:  # of its parent, which is imported: a trial will tell
            return True


FLASH_KERNELS = (
    FlashKernel(
        name="flash_attn_3",
        module="flash_attn_interface",
        package="flash-attn's hopper directory",
        generations=(9,),
        block_sizes=(16, 32),
        attend=_attend_3,
    ),
    FlashKernel(
        name="flash_attn_4",
        module="flash_attn.cute",
        package="flash-attn-4",
        generations=(9, 10, 11),
        block_sizes=(16, 32),
        attend=_attend_4,
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
"""Versions of flash-attn in the order in which they are tried, the fastest first."""
FLASHINFER = FlashKernel(
    name="flashinfer",
    module="flashinfer",
    package="flashinfer-python and flashinfer-cubin",
    generations=(10,),
    block_sizes=(16, 32, 64),
    attend=_attend_flashinfer,
    head_sizes=(128, 256),
    caps_scores=False,
    has_windows=False,
)
PACKAGED_KERNELS = (*FLASH_KERNELS, FLASHINFER)


def why_not(kernel: FlashKernel, shape: AttentionShape) -> str | None:
    """Returns why a kernel cannot serve a shape, with the remedy; None if it can."""
    if not kernel.is_installed():
        return f"is not installed; install {kernel.package}, or use 'auto'"
    generation = generation_of(shape.device)
    if generation not in kernel.generations:
        where = "no CUDA device" if generation is None else f"compute capability {generation}"
        return f"does not page on {where}; use 'auto'"
    if shape.dtype not in (torch.float16, torch.bfloat16):
        return f"takes 16 bits, not {shape.dtype}; use dtype bfloat16, or 'auto'"
    if kernel.head_sizes and shape.head_size not in kernel.head_sizes:
        sizes = " or ".join(map(str, kernel.head_sizes))
        return f"takes heads of {sizes} elements, not {shape.head_size}; use 'auto'"
    if not kernel.has_windows and any(window is not None for window in shape.sliding_windows):
        return "takes no sliding windows, as this model has; use 'auto'"
    if shape.head_size % 8 or shape.head_size > _MAX_HEAD_SIZE:
        return (
            f"takes heads of up to {_MAX_HEAD_SIZE} elements in multiples of 8, not "
            f"{shape.head_size}; use 'auto'"
        )
    return None


def generation_of(device: torch.device) -> int | None:
    """Returns the device's major compute capability; None if it is no CUDA device."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else None

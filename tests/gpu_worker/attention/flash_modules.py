"""Stand-ins for flash-attn 2, 3 and 4: the signatures of the real ones, computed by our reference.

Each refuses what the real one refuses, so that a call that passes here has the right arguments.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from signalbox_kernels import reference

_NO_WINDOW = ((-1, -1), (None, None))


def make_flash_attn_2() -> ModuleType:
    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Tensor | None = None,
    ) -> Tensor:
        assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        _check(q, k, cu_seqlens_q, cu_seqlens_k, block_table)
        lens = cu_seqlens_k.diff()
        _check_bounds(cu_seqlens_q, lens, max_seqlen_q, max_seqlen_k)
        assert causal and softmax_scale is not None
        return _attend(
            q, k, v, cu_seqlens_q, lens, block_table, softmax_scale, window_size, softcap
        )

    return _module("flash_attn", flash_attn_varlen_func=flash_attn_varlen_func)


def make_flash_attn_3() -> ModuleType:
    def flash_attn_with_kvcache(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        qv: Tensor | None = None,
        rotary_cos: Tensor | None = None,
        rotary_sin: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
        cache_batch_idx: Tensor | None = None,
        cache_leftpad: Tensor | None = None,
        page_table: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k_new: Tensor | None = None,
        max_seqlen_q: int | None = None,
        rotary_seqlens: Tensor | None = None,
        q_descale: Tensor | None = None,
        k_descale: Tensor | None = None,
        v_descale: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        attention_chunk: int = 0,
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        scheduler_metadata: Tensor | None = None,
        num_splits: int = 0,
        pack_gqa: bool | None = None,
        sm_margin: int = 0,
        return_softmax_lse: bool = False,
    ) -> Tensor:
        assert cu_seqlens_q is not None and cache_seqlens is not None and max_seqlen_q is not None
        _check(q, k_cache, cu_seqlens_q, cache_seqlens, page_table)
        _check_bounds(cu_seqlens_q, cache_seqlens, max_seqlen_q, 1 << 30)
        assert causal and softmax_scale is not None and k is None and v is None
        return _attend(
            q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, softmax_scale,
            window_size, softcap,
        )  # fmt: skip

    return _module("flash_attn_interface", flash_attn_with_kvcache=flash_attn_with_kvcache)


def make_flash_attn_4() -> ModuleType:
    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        qv: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        min_seqlen_k: int | None = None,
        seqused_q: Tensor | None = None,
        seqused_k: Tensor | None = None,
        gather_kv_indices: Tensor | None = None,
        page_table: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int | None, int | None] = (None, None),
        learnable_sink: Tensor | None = None,
        softcap: float = 0.0,
        num_splits: int = 1,
        **others: Any,
    ) -> tuple[Tensor, None]:
        assert cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
        assert cu_seqlens_q is not None and seqused_k is not None
        assert max_seqlen_q is not None and max_seqlen_k is not None and not others
        _check(q, k, cu_seqlens_q, seqused_k, page_table)
        _check_bounds(cu_seqlens_q, seqused_k, max_seqlen_q, max_seqlen_k)
        assert causal and softmax_scale is not None and qv is None
        out = _attend(
            q, k, v, cu_seqlens_q, seqused_k, page_table, softmax_scale, window_size, softcap
        )
        return out, None

    return _module("flash_attn.cute", flash_attn_varlen_func=flash_attn_varlen_func)


def _module(name: str, **functions: object) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(functions)
    return module


def _check(q: Tensor, k: Tensor, *integers: Tensor | None) -> None:
    assert q.dtype in (torch.float16, torch.bfloat16), "only fp16 and bf16"
    assert q.stride(-1) == k.stride(-1) == 1
    for tensor in integers:
        assert tensor is not None and tensor.dtype is torch.int32, "must have dtype int32"
        assert tensor.stride(-1) == 1


def _check_bounds(cu_seqlens_q: Tensor, lens: Tensor, most_queries: int, most_keys: int) -> None:
    assert int(cu_seqlens_q.diff().max()) <= most_queries
    assert int(lens.max()) <= most_keys


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start: Tensor,
    lens: Tensor,
    tables: Tensor | None,
    scale: float,
    window: tuple[int | None, int | None],
    cap: float,
) -> Tensor:
    assert tables is not None and (window in _NO_WINDOW or window[1] == 0)
    return reference.paged_attention(
        q,
        torch.stack((k, v), dim=1),
        query_start=query_start,
        context_lens=lens,
        block_tables=tables,
        scale=scale,
        sliding_window=None if window in _NO_WINDOW else (window[0] or 0) + 1,
        soft_cap=cap or None,
    )

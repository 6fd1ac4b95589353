"""Stand-ins for flash-attn 2, 3 and 4: the signatures of the real ones, computed by our reference.

Each refuses what the real one refuses, so that a call that passes here has the right arguments.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from signalbox_kernels.torch import reference

_NO_WINDOW = ((-1, -1), (None, None))
_FLASH_ATTN_2 = """
    q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale causal
    window_size softcap alibi_slopes deterministic return_attn_probs block_table
"""
_FLASH_ATTN_3 = """
    q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad
    page_table cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale
    v_descale softmax_scale causal window_size attention_chunk softcap rotary_interleaved
    scheduler_metadata num_splits pack_gqa sm_margin return_softmax_lse
"""
_FLASH_ATTN_4 = """
    q k v qv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k min_seqlen_k seqused_q seqused_k
    gather_kv_indices page_table softmax_scale causal window_size learnable_sink softcap num_splits
"""
"""Parameters in the order of the real functions; the real version 4 has more."""


def _given(parameters: str, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by the names of the parameters, which must exist."""
    names = parameters.split()
    given = dict(zip(names, args, strict=False)) | named
    assert len(args) <= len(names) and given.keys() <= set(names)
    assert given["causal"] and given["softmax_scale"] is not None
    return given


def make_flash_attn_2() -> ModuleType:
    def flash_attn_varlen_func(*args: Any, **named: Any) -> Tensor:
        given = _given(_FLASH_ATTN_2, args, named)
        assert given["k"].shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        lens = given["cu_seqlens_k"].diff()
        assert int(lens.max()) <= given["max_seqlen_k"]
        return _attend(given, given["k"], given["v"], lens, given["block_table"])

    return _module("flash_attn", flash_attn_varlen_func=flash_attn_varlen_func)


def make_flash_attn_3() -> ModuleType:
    def flash_attn_with_kvcache(*args: Any, **named: Any) -> Tensor:
        given = _given(_FLASH_ATTN_3, args, named)
        assert given.get("k") is None and given.get("v") is None
        caches = given["k_cache"], given["v_cache"]
        return _attend(given, *caches, given["cache_seqlens"], given["page_table"])

    return _module("flash_attn_interface", flash_attn_with_kvcache=flash_attn_with_kvcache)


def make_flash_attn_4() -> ModuleType:
    def flash_attn_varlen_func(*args: Any, **named: Any) -> tuple[Tensor, None]:
        given = _given(_FLASH_ATTN_4, args, named)
        assert "cu_seqlens_k" not in given, "page_table is not supported with cu_seqlens_k"
        assert given.get("qv") is None
        lens = given["seqused_k"]
        assert int(lens.max()) <= given["max_seqlen_k"]
        return _attend(given, given["k"], given["v"], lens, given["page_table"]), None

    return _module("flash_attn.cute", flash_attn_varlen_func=flash_attn_varlen_func)


def _module(name: str, **functions: object) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(functions)
    return module


def _attend(given: dict[str, Any], k: Tensor, v: Tensor, lens: Tensor, tables: Tensor) -> Tensor:
    """Checks what the real ones check, and computes."""
    q, query_start = given["q"], given["cu_seqlens_q"]
    assert q.dtype in (torch.float16, torch.bfloat16), "only fp16 and bf16"
    assert q.stride(-1) == k.stride(-1) == 1
    for tensor in (query_start, lens, tables):
        assert tensor.dtype is torch.int32, "must have dtype int32"
        assert tensor.stride(-1) == 1
    assert int(query_start.diff().max()) <= given["max_seqlen_q"]
    window = given.get("window_size", (-1, -1))
    assert window in _NO_WINDOW or window[1] == 0
    return reference.paged_attention(
        q,
        torch.stack((k, v), dim=1),
        query_start=query_start,
        context_lens=lens,
        block_tables=tables,
        scale=given["softmax_scale"],
        sliding_window=None if window in _NO_WINDOW else (window[0] or 0) + 1,
        soft_cap=given.get("softcap") or None,
    )

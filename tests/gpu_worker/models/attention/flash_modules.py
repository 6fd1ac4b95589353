"""Stand-ins for flash-attn 2, 3, 4 and FlashInfer: the real signatures, computed by our reference.

Each refuses what the real one refuses, so that a call that passes here has the right arguments.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from signalbox_kernels.torch import attention
from tests.gpu_worker.models.attention.record_signatures import recorded

_NO_WINDOW = ((-1, -1), (None, None))


def _given(version: str, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by name; they must be what the recorded function takes."""
    parameters = recorded()[version]["parameters"]
    names = [parameter["name"] for parameter in parameters]
    given = dict(zip(names, args, strict=False)) | named
    required = {each["name"] for each in parameters if "default" not in each}
    assert len(args) + len(named) == len(given), "an argument is given twice"
    assert len(args) <= len(names) and required <= given.keys() <= set(names)
    return given


def make_flash_attn_2() -> ModuleType:
    def flash_attn_varlen_func(*args: Any, **named: Any) -> Tensor:
        given = _given("flash_attn_2", args, named)
        assert given["k"].shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        lens = given["cu_seqlens_k"].diff()
        assert int(lens.max()) <= given["max_seqlen_k"]
        return _attend(given, given["k"], given["v"], lens, given["block_table"])

    return _module("flash_attn", flash_attn_varlen_func=flash_attn_varlen_func)


def make_flash_attn_3() -> ModuleType:
    def flash_attn_with_kvcache(*args: Any, **named: Any) -> Tensor:
        given = _given("flash_attn_3", args, named)
        assert given.get("k") is None and given.get("v") is None
        caches = given["k_cache"], given["v_cache"]
        return _attend(given, *caches, given["cache_seqlens"], given["page_table"])

    return _module("flash_attn_interface", flash_attn_with_kvcache=flash_attn_with_kvcache)


def make_flash_attn_4() -> ModuleType:
    def flash_attn_varlen_func(*args: Any, **named: Any) -> tuple[Tensor, None]:
        given = _given("flash_attn_4", args, named)
        assert "cu_seqlens_k" not in given, "page_table is not supported with cu_seqlens_k"
        assert given.get("qv") is None
        lens = given["seqused_k"]
        assert int(lens.max()) <= given["max_seqlen_k"]
        return _attend(given, given["k"], given["v"], lens, given["page_table"]), None

    return _module("flash_attn.cute", flash_attn_varlen_func=flash_attn_varlen_func)


def make_flashinfer() -> ModuleType:
    def trtllm_batch_decode_with_kv_cache(*args: Any, **named: Any) -> Tensor:
        given = _given("flashinfer_decode", args, named)
        assert given["backend"] == "trtllm-gen"
        num_seqs = len(given["seq_lens"])
        assert len(given["query"]) == num_seqs, "q_len_per_req is 1"
        starts = torch.arange(num_seqs + 1, dtype=torch.int32)
        return attend(given, starts, 1, given["max_seq_len"])

    def trtllm_batch_context_with_kv_cache(*args: Any, **named: Any) -> Tensor:
        given = _given("flashinfer_context", args, named)
        assert given["batch_size"] == len(given["seq_lens"])
        assert torch.equal(given["cum_seq_lens_kv"].diff(), given["seq_lens"])
        return attend(given, given["cum_seq_lens_q"], given["max_q_len"], given["max_kv_len"])

    def attend(given: dict[str, Any], starts: Tensor, most_queries: int, most_keys: int) -> Tensor:
        workspace, lens = given["workspace_buffer"], given["seq_lens"]
        assert not workspace.any() and workspace.nbytes >= 1 << 27
        assert given["kv_layout"] == "NHD" and int(lens.max()) <= most_keys
        as_flash = {
            "q": given["query"],
            "cu_seqlens_q": starts,
            "max_seqlen_q": most_queries,
            "softmax_scale": given["bmm1_scale"],
            "causal": True,
        }
        return _attend(as_flash, *given["kv_cache"], lens, given["block_tables"])

    module = ModuleType("flashinfer")
    module.decode = _module(  # type: ignore[attr-defined]
        "flashinfer.decode", trtllm_batch_decode_with_kv_cache=trtllm_batch_decode_with_kv_cache
    )
    module.prefill = _module(  # type: ignore[attr-defined]
        "flashinfer.prefill", trtllm_batch_context_with_kv_cache=trtllm_batch_context_with_kv_cache
    )
    return module


def _module(name: str, **functions: object) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(functions)
    return module


def _attend(given: dict[str, Any], k: Tensor, v: Tensor, lens: Tensor, tables: Tensor) -> Tensor:
    """Checks what the real ones check, and computes."""
    assert given["causal"] and given["softmax_scale"] is not None
    q, query_start = given["q"], given["cu_seqlens_q"]
    assert q.dtype in (torch.float16, torch.bfloat16), "only fp16 and bf16"
    assert q.stride(-1) == k.stride(-1) == 1
    for tensor in (query_start, lens, tables):
        assert tensor.dtype is torch.int32, "must have dtype int32"
        assert tensor.stride(-1) == 1
    assert int(query_start.diff().max()) <= given["max_seqlen_q"]
    window = given.get("window_size", (-1, -1))
    assert window in _NO_WINDOW or window[1] == 0
    return attention.paged_attention(
        q,
        torch.stack((k, v), dim=1),
        query_start=query_start,
        context_lens=lens,
        block_tables=tables,
        scale=given["softmax_scale"],
        sliding_window=None if window in _NO_WINDOW else (window[0] or 0) + 1,
        soft_cap=given.get("softcap") or None,
    )

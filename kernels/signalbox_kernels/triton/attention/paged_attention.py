"""Paged attention: plans of a step, once for all layers, and a layer's attention."""

from functools import cache

import torch
from torch import Tensor

from signalbox_kernels.triton import MAX_GROUP, MAX_HEAD_SIZE
from signalbox_kernels.triton.attention.paged_kernel import OP, attend
from signalbox_kernels.triton.attention.tiles import LEAST_DOT, Tile, choose_tile
from signalbox_kernels.triton.attention.work import Sharing, Work, plan_work
from signalbox_kernels.triton.launch import check, check_tensors, is_interpreted, next_power_of_2


def paged_attention(
    query: Tensor,
    kv_cache: Tensor,
    *,
    query_start: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    is_causal: bool = True,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    token_scales: Tensor | None = None,
    tile: Tile | None = None,
    sharing: Sharing | None = None,
    joins_inside: bool = True,
    dependent: bool = False,
) -> Tensor:
    """Computes attention; `ops.paged_attention` is the contract.

    `plan_attention` and `attend` say the rest, which benchmarks set.
    """
    work = plan_attention(
        query_start,
        context_lens,
        num_tokens=len(query),
        most_queries=1 if len(query) == len(context_lens) else len(query),
        num_heads=query.shape[1],
        num_kv_heads=kv_cache.shape[3],
        head_size=query.shape[2],
        dtype=query.dtype,
        is_causal=is_causal,
        sliding_window=sliding_window,
        has_token_scales=token_scales is not None,
        tile=tile,
        sharing=sharing,
    )
    return attend(
        query,
        kv_cache,
        work,
        block_tables=block_tables,
        scale=scale,
        soft_cap=soft_cap,
        k_scale=k_scale,
        v_scale=v_scale,
        token_scales=token_scales,
        joins_inside=joins_inside,
        dependent=dependent,
    )


def plan_attention(
    query_start: Tensor,
    context_lens: Tensor,
    *,
    num_tokens: int,
    most_queries: int,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    is_causal: bool = True,
    sliding_window: int | None = None,
    has_token_scales: bool = False,
    tile: Tile | None = None,
    sharing: Sharing | None = None,
) -> Work:
    """Divides a step's attention among programs, for all layers with one window.

    The result holds for the lengths that the tensors have when the device gets there, so a graph
    may contain it.

    Args:
        most_queries: upper bound on the queries of a sequence. Where it fits a decode's tile, all
            get one: in the larger one of prefills a decode reads its keys as fast, and queries of a
            prompt that are in few tiles read theirs few times.
        tile: sizes of a program's tile; None takes `choose_tile`'s.
        sharing: when programs share keys; None spares as many programs as the
            device runs at once.
    """
    check_tensors(OP, query_start, context_lens)
    check(
        query_start.shape == (len(context_lens) + 1,),
        "{}: starts are {}, contexts {}",
        OP,
        query_start.shape,
        context_lens.shape,
    )
    check(
        query_start.is_contiguous() and context_lens.is_contiguous(),
        f"{OP}: starts and lengths must be contiguous",
    )
    group = num_heads // num_kv_heads
    check(
        num_heads % num_kv_heads == 0 and group <= MAX_GROUP,
        "{}: {} heads on {}; groups must be whole, of at most 128",
        OP,
        num_heads,
        num_kv_heads,
    )
    check(head_size <= MAX_HEAD_SIZE, "{}: heads have {} elements; at most 256", OP, head_size)
    is_prefill = not is_causal or most_queries * group > LEAST_DOT
    padded_size = max(LEAST_DOT, next_power_of_2(head_size))
    tile = tile or choose_tile(
        num_bytes=dtype.itemsize,
        padded_size=padded_size,
        is_prefill=is_prefill,
        has_token_scales=has_token_scales,
        capability=_capability(context_lens.device),
    )
    return plan_work(
        query_start,
        context_lens,
        num_tokens=num_tokens,
        num_kv_heads=num_kv_heads,
        group=group,
        padded_size=padded_size,
        tile=tile._replace(rows=max(tile.rows, next_power_of_2(group))),
        sharing=sharing or _choose_sharing(num_kv_heads, is_prefill, context_lens.device),
        is_causal=is_causal,
        window=sliding_window,
    )


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return (0, 0) if is_interpreted() else torch.cuda.get_device_capability(device)


@cache
def _choose_sharing(num_kv_heads: int, is_prefill: bool, device: torch.device) -> Sharing:
    """Spare programs for each that the device runs at once: a processor holds two of a decode."""
    if is_interpreted():
        return Sharing(spare=0)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return Sharing(spare=-(-processors * (1 if is_prefill else 2) // num_kv_heads))

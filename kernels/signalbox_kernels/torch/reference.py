"""The reference of each op in plain Torch; `ops.py` states the contracts.

It is written for clarity, but the ops that are also the implementation on a CPU (all except
`paged_attention`) avoid needless passes over their data.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

E4M3_MAX = 448.0
"""Largest finite value of float8_e4m3fn, which has no infinity."""
FP8_GROUP = 128
"""Columns of a block with a scale of its own."""
INT8_MAX = 127.0
LEAST_CODED = 2.0**-120
"""Largest magnitude of values that are all coded as 0, because its inverse could overflow."""
LEAST_MAXIMUM = 1e-10
"""Keeps the scale of zeros from being zero."""


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    token_scales: Tensor | None = None,
) -> None:
    used = slot_mapping >= 0
    slots = slot_mapping[used]
    block_size = kv_cache.shape[2]
    blocks, offsets = slots // block_size, slots % block_size
    for side, (heads, scale) in enumerate(((key[used], k_scale), (value[used], v_scale))):
        if token_scales is None:
            kv_cache[blocks, side, offsets] = to_cache(heads, kv_cache.dtype, scale)
        else:
            codes, scales = to_int8(heads)
            kv_cache[blocks, side, offsets] = codes
            token_scales[blocks, side, offsets] = scales


def to_int8(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Returns codes of heads, [..., head_size] int8, and their scales, [...] float32: 1/127 of the
    largest magnitude, or NaN with codes of 0 if an element is not finite."""
    wide = heads.float()
    top = wide.abs().amax(dim=-1)
    top = torch.where(top.isfinite(), top, torch.nan)
    # A number by a tensor would be its reciprocal times the number, which rounds twice.
    inverse = torch.where(top > LEAST_CODED, torch.full_like(top, INT8_MAX) / top, 0.0)
    codes = (wide * inverse[..., None]).round_().nan_to_num_(0.0).to(torch.int8)
    return codes, top * (1.0 / INT8_MAX)


def to_cache(values: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Returns K or V as a cache of a type holds it; not a copy if that is their own type."""
    if dtype is values.dtype:
        return values
    assert dtype is torch.float8_e4m3fn, "the only other type that the contract has"
    return (values.float() * (1.0 / scale)).clamp_(-E4M3_MAX, E4M3_MAX).to(dtype)


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
) -> Tensor:
    out = torch.empty_like(query)
    lens = context_lens.tolist()
    for i, (start, end) in enumerate(pairwise(query_start.tolist())):
        keys, values = map(Tensor.float, _context(kv_cache, block_tables[i], lens[i]))
        if token_scales is not None:
            scales = _context(token_scales, block_tables[i], lens[i])
            keys, values = keys * scales[0][..., None], values * scales[1][..., None]
        visible = attention_mask(
            num_queries=end - start,
            num_keys=lens[i],
            is_causal=is_causal,
            sliding_window=sliding_window,
            device=query.device,
        )
        out[start:end] = _attend(
            query[start:end],
            keys * k_scale,
            values * v_scale,
            visible,
            scale=scale,
            soft_cap=soft_cap,
        )
    return out


def attention_mask(
    *,
    num_queries: int,
    num_keys: int,
    is_causal: bool = True,
    sliding_window: int | None,
    device: torch.device,
) -> Tensor:
    """Returns [num_queries, num_keys] bool: the keys that each of the last `num_queries` sees."""
    keys = torch.arange(num_keys, device=device)
    queries = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    visible = (keys <= queries) | (not is_causal)
    if sliding_window is not None:
        visible &= (keys - queries).abs() < sliding_window
    return visible


def _context(kv_cache: Tensor, block_table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Returns K and V of a sequence, each [length, num_kv_heads, head_size]; or their scales."""
    num_blocks = -(-length // kv_cache.shape[2])
    blocks = kv_cache[block_table[:num_blocks].long()]
    keys, values = blocks.transpose(0, 1).flatten(1, 2)[:, :length]
    return keys, values


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    *,
    scale: float,
    soft_cap: float | None,
) -> Tensor:
    group = query.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(group, dim=1)
    values = values.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)


def copy_blocks(pool: Tensor, src: Tensor, dst: Tensor) -> None:
    swap_blocks(pool, pool, src, dst)


def swap_blocks(src_pool: Tensor, dst_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    for source, target, length in _runs(src.tolist(), dst.tolist()):
        dst_pool[target : target + length].copy_(
            src_pool[source : source + length], non_blocking=True
        )


def _runs(src: list[int], dst: list[int]) -> list[tuple[int, int, int]]:
    """Returns (source, target, length) of each run of neighbours, which is one copy."""
    runs: list[tuple[int, int, int]] = []
    for source, target in zip(src, dst, strict=True):
        if runs:
            first_source, first_target, length = runs[-1]
            if source == first_source + length and target == first_target + length:
                runs[-1] = (first_source, first_target, length + 1)
                continue
        runs.append((source, target, 1))
    return runs


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    wide = x.float()
    scale = wide.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    return rms_norm(residual.add_(x), weight, eps=eps)


def rotary_embedding(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> None:
    turned = heads.roll(heads.shape[-1] // 2, dims=-1).mul_(signed_sin)
    heads.mul_(cos).add_(turned)


def rotary_and_cache(
    query: Tensor,
    key_value: Tensor,
    cos: Tensor,
    signed_sin: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    token_scales: Tensor | None = None,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> None:
    key, value = key_value.unbind(dim=1)
    key = key.clone()
    if norms is not None:
        for heads, weight in zip((query, key), norms, strict=True):
            heads.copy_(rms_norm(heads.to(weight.dtype), weight, eps=eps))
    rotary_embedding(query, cos, signed_sin)
    rotary_embedding(key, cos, signed_sin)
    reshape_and_cache(
        key,
        value,
        kv_cache,
        slot_mapping,
        k_scale=k_scale,
        v_scale=v_scale,
        token_scales=token_scales,
    )


def silu_and_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rms_norm_linear(
    x: Tensor,
    norm: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    eps: float,
    is_gated: bool = False,
) -> Tensor:
    product = F.linear(rms_norm(x, norm, eps=eps), weight, bias)
    return silu_and_mul(product) if is_gated else product


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> None:
    residual.add_(F.linear(x, weight, bias))


def gather_logprobs(
    logits: Tensor, tokens: Tensor, *, num_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    table = logits.log_softmax(dim=-1)
    of_token = table.gather(1, tokens[:, None])
    top = table.topk(num_top)
    return of_token.flatten(), (table >= of_token).sum(dim=-1), top.values, top.indices


def quantize_fp8(
    x: Tensor, *, group_size: int | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    size = x.shape[-1]
    width = group_size or size
    groups = F.pad(x.float(), (0, -size % width)).view(len(x), -1, width)
    scales = groups.abs().amax(dim=-1).clamp_min_(LEAST_MAXIMUM).div_(E4M3_MAX)
    if scale is not None:
        scales.fill_(scale)
    scaled = (groups / scales[..., None]).flatten(-2)[..., :size]
    return scaled.clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scales


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    *,
    rows_per_scale: int,
    x_scale: float | None = None,
) -> Tensor:
    is_grouped = scales.shape[1] > 1
    codes, of_x = quantize_fp8(x, group_size=FP8_GROUP if is_grouped else None, scale=x_scale)
    width = FP8_GROUP if is_grouped else x.shape[1]
    of_rows = scales.repeat_interleave(rows_per_scale, dim=0)[: len(weight)]
    matrix = weight.float() * of_rows.repeat_interleave(width, dim=1)[:, : x.shape[1]]
    rows = codes.float() * of_x.repeat_interleave(width, dim=1)[:, : x.shape[1]]
    return F.linear(rows, matrix, None if bias is None else bias.float()).to(x.dtype)

"""Keys and values in blocks, in plain Torch: written, rotated and written, and moved.

What a layer's cache looks like is in `ops.py`.
"""

import torch
from torch import Tensor

from signalbox_kernels.torch.fp8 import E4M3_MAX
from signalbox_kernels.torch.row_ops import rms_norm, rotary_embedding

INT8_MAX = 127.0
LEAST_CODED = 2.0**-120
"""Largest magnitude of values that are all coded as 0, because its inverse could overflow."""


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
    """Writes each token's K and V to its slot.

    Args:
        key, value: [num_tokens, num_kv_heads, head_size].
        kv_cache: one layer's view, [num_blocks, 2, block_size, num_kv_heads, head_size]; written.
        slot_mapping: [num_tokens] int64, block * block_size + offset; negative is padding.
        k_scale, v_scale: of a cache in E4M3; any other is not scaled by them.
        token_scales: of a cache in int8; written.
    """
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
    """Rotates queries in place, and writes rotated keys, and values, to their slots.

    Args:
        query: [num_tokens, num_heads, head_size]; written.
        key_value: [num_tokens, 2, num_kv_heads, head_size]; keys not rotated, and left so.
        cos, signed_sin: as of rotary_embedding.
        kv_cache, slot_mapping, k_scale, v_scale, token_scales: as of reshape_and_cache.
        norms, eps: weights [head_size] of the rms_norm of each head of Q and of K before they are
            rotated, in their own dtype or float32; None norms neither.
    """
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


def copy_blocks(pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copies whole blocks within a pool: block src[i] becomes block dst[i], bit for bit.

    Args:
        pool: [num_blocks, block_bytes] uint8; written.
        src, dst: [num_copies] int64 on the CPU; distinct destinations, none of them a source.
    """
    swap_blocks(pool, pool, src, dst)


def swap_blocks(src_pool: Tensor, dst_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copies whole blocks between pools, which may be on different devices, bit for bit.

    Args:
        src_pool: [num_src_blocks, block_bytes] uint8.
        dst_pool: [num_dst_blocks, block_bytes] uint8; written.
        src, dst: [num_copies] int64 on the CPU; distinct destinations.
    """
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

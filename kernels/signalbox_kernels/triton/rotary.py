"""Rotary position embedding (Su et al., 2021), in place, or on the way into the cache, perhaps
after a norm of each head of Q and K (as in Qwen3).

A program takes some heads of one token: both halves of each head are loaded, turned and stored.
Products are rounded to the heads' type before they are added, as the reference does.
"""

import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton.int8_codes import inverse_and_scales, magnitudes, to_codes
from signalbox_kernels.triton.launch import (
    await_kernels_before,
    check,
    check_cache,
    check_floats,
    check_tensors,
    launch_options,
    next_power_of_2,
    scale_strides,
)
from signalbox_kernels.triton.reshape_and_cache import to_cache

_HEADS_PER_PROGRAM = 16


@triton.jit
def _turned(heads, offsets, mask, cos, signed_sin, half, weight, eps, NORMS: tl.constexpr):
    """Returns both halves of the heads at `offsets`, perhaps normalised, and rotated."""
    first = tl.load(heads + offsets, mask=mask, other=0.0)
    second = tl.load(heads + offsets + half, mask=mask, other=0.0)
    if NORMS:
        a, b = first.to(tl.float32), second.to(tl.float32)
        mean = (tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * half)
        scale = tl.rsqrt(mean + eps)[:, None]
        first = _weighed(a * scale, weight, mask, first.dtype)
        second = _weighed(b * scale, weight + half, mask, first.dtype)
    return (
        _sum(first, cos, second, signed_sin, 0, mask),
        _sum(second, cos, first, signed_sin, half, mask),
    )


@triton.jit
def _weighed(normed, weight, mask, dtype: tl.constexpr):
    """Returns weight * normed, which is rounded to the weight's type before, as in `rms_norm`."""
    w = tl.load(weight, mask=mask, other=0.0)
    return (normed.to(w.dtype).to(tl.float32) * w.to(tl.float32)).to(dtype)


@triton.jit
def _sum(straight, cos, crossed, signed_sin, at, mask):
    """Returns straight * cos + crossed * sin."""
    dtype = straight.dtype
    c = tl.load(cos + at, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(signed_sin + at, mask=mask, other=0.0).to(tl.float32)
    a = (straight.to(tl.float32) * c).to(dtype).to(tl.float32)
    b = (crossed.to(tl.float32) * s).to(dtype).to(tl.float32)
    return (a + b).to(dtype)


@triton.jit
def _store(
    target, half, mask, scale_of, is_head, first, second, inverse_scale, HAS_SCALES: tl.constexpr
):
    """Writes both halves of heads to a cache, and the scales of those in int8."""
    if HAS_SCALES:
        sizes = tl.where(mask, tl.maximum(magnitudes(first), magnitudes(second)), 0.0)
        inverse, scales = inverse_and_scales(sizes)
        tl.store(scale_of, scales, mask=is_head)
        tl.store(target, to_codes(first, inverse), mask=mask)
        tl.store(target + half, to_codes(second, inverse), mask=mask)
    else:
        TYPE: tl.constexpr = target.dtype.element_ty
        tl.store(target, to_cache(first, inverse_scale, TYPE), mask=mask)
        tl.store(target + half, to_cache(second, inverse_scale, TYPE), mask=mask)


@triton.jit
def _rotary_kernel(
    heads,
    cos,
    signed_sin,
    token_stride,
    head_stride,
    cos_stride,
    sin_stride,
    num_heads,
    half,
    HEADS: tl.constexpr,
    PADDED_HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    element = tl.arange(0, PADDED_HALF)[None, :]
    mask = (head < num_heads) & (element < half)
    offsets = token * token_stride + head * head_stride + element
    c = cos + token * cos_stride + element
    s = signed_sin + token * sin_stride + element
    first, second = _turned(heads, offsets, mask, c, s, half, cos, 0.0, False)
    tl.store(heads + offsets, first, mask=mask)
    tl.store(heads + offsets + half, second, mask=mask)


@triton.jit
def _rotary_and_cache_kernel(
    query,
    key_value,
    cos,
    signed_sin,
    kv_cache,
    token_scales,
    slot_mapping,
    query_token_stride,
    query_head_stride,
    kv_token_stride,
    kv_side_stride,
    kv_head_stride,
    cos_stride,
    sin_stride,
    block_stride,
    side_stride,
    offset_stride,
    head_stride,
    scale_block_stride,
    scale_side_stride,
    scale_offset_stride,
    scale_head_stride,
    num_heads,
    num_kv_heads,
    half,
    block_size,
    query_programs,
    inverse_k_scale,
    inverse_v_scale,
    query_weight,
    key_weight,
    eps,
    HAS_SCALES: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    NORMS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    await_kernels_before(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    element = tl.arange(0, PADDED_HALF)[None, :]
    c = cos + token * cos_stride + element
    s = signed_sin + token * sin_stride + element
    if part < query_programs:
        head = part * HEADS + tl.arange(0, HEADS)[:, None]
        mask = (head < num_heads) & (element < half)
        offsets = token * query_token_stride + head * query_head_stride + element
        weight = query_weight + element
        first, second = _turned(query, offsets, mask, c, s, half, weight, eps, NORMS)
        tl.store(query + offsets, first, mask=mask)
        tl.store(query + offsets + half, second, mask=mask)
    else:
        slot = tl.load(slot_mapping + token).to(tl.int64)  # offsets in a cache exceed 2^31
        heads = (part - query_programs) * HEADS + tl.arange(0, HEADS)
        head = heads[:, None]
        mask = (head < num_kv_heads) & (element < half) & (slot >= 0)
        offsets = token * kv_token_stride + head * kv_head_stride + element
        block, offset = slot // block_size, slot % block_size
        target = block * block_stride + offset * offset_stride
        target = kv_cache + target + head * head_stride + element
        weight = key_weight + element
        first, second = _turned(key_value, offsets, mask, c, s, half, weight, eps, NORMS)
        scale_of = token_scales + block * scale_block_stride + offset * scale_offset_stride
        scale_of += heads * scale_head_stride
        is_head = (heads < num_kv_heads) & (slot >= 0)
        _store(target, half, mask, scale_of, is_head, first, second, inverse_k_scale, HAS_SCALES)
        values = key_value + kv_side_stride + offsets
        first = tl.load(values, mask=mask, other=0.0)
        second = tl.load(values + half, mask=mask, other=0.0)
        target += side_stride
        scale_of += scale_side_stride
        _store(target, half, mask, scale_of, is_head, first, second, inverse_v_scale, HAS_SCALES)


def rotary_embedding(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> None:
    """Rotates heads in place; `ops.rotary_embedding` is the contract."""
    num_tokens, num_heads, half = _check("rotary_embedding", heads, cos, signed_sin)
    if not num_tokens:
        return
    _rotary_kernel[(num_tokens, -(-num_heads // _HEADS_PER_PROGRAM))](
        heads,
        cos,
        signed_sin,
        *heads.stride()[:2],
        cos.stride(0),
        signed_sin.stride(0),
        num_heads,
        half,
        HEADS=_HEADS_PER_PROGRAM,
        PADDED_HALF=next_power_of_2(half),
    )


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
    dependent: bool = False,
) -> None:
    """Rotates queries in place, and keys into the cache; `ops.rotary_and_cache` is the contract.

    Args:
        dependent: see `launch_options`.
    """
    op = "rotary_and_cache"
    num_tokens, num_heads, half = _check(op, query, cos, signed_sin)
    check_tensors(op, query, key_value, kv_cache, slot_mapping)
    check_cache(op, kv_cache, token_scales, query, key_value)
    check(
        key_value.shape[:2] == (num_tokens, 2) and key_value.shape[2:] == kv_cache.shape[3:],
        "{}: K and V are {}, the cache {}",
        op,
        key_value.shape,
        kv_cache.shape,
    )
    check(slot_mapping.shape == (num_tokens,), "{}: there must be one slot for each token", op)
    query_weight, key_weight = norms or (cos, cos)
    if norms is not None:
        check_tensors(op, query, *norms)
        check_floats(op, *norms)
        check(
            query_weight.shape == key_weight.shape == (2 * half,),
            "{}: norms are {} and {}",
            op,
            query_weight.shape,
            key_weight.shape,
        )
    if not num_tokens:
        return
    num_kv_heads = key_value.shape[2]
    query_programs = -(-num_heads // _HEADS_PER_PROGRAM)
    programs = query_programs + -(-num_kv_heads // _HEADS_PER_PROGRAM)
    _rotary_and_cache_kernel[(num_tokens, programs)](
        query,
        key_value,
        cos,
        signed_sin,
        kv_cache,
        kv_cache if token_scales is None else token_scales,
        slot_mapping,
        *query.stride()[:2],
        *key_value.stride()[:3],
        cos.stride(0),
        signed_sin.stride(0),
        *kv_cache.stride()[:4],
        *scale_strides(token_scales),
        num_heads,
        num_kv_heads,
        half,
        kv_cache.shape[2],
        query_programs,
        1.0 / k_scale,
        1.0 / v_scale,
        query_weight,
        key_weight,
        eps,
        HAS_SCALES=token_scales is not None,
        HEADS=_HEADS_PER_PROGRAM,
        PADDED_HALF=next_power_of_2(half),
        NORMS=norms is not None,
        **launch_options(dependent),
    )


def _check(op: str, heads: Tensor, cos: Tensor, signed_sin: Tensor) -> tuple[int, int, int]:
    """Returns tokens, heads and half the size of a head."""
    check_tensors(op, heads, cos, signed_sin)
    check_floats(op, heads, cos, signed_sin)
    num_tokens, num_heads, head_size = heads.shape
    check(head_size % 2 == 0, "{}: heads have {} elements; the number must be even", op, head_size)
    angles = (num_tokens, 1, head_size)
    check(
        cos.shape == angles and signed_sin.shape == angles,
        "{}: angles are {} and {}, not {}",
        op,
        cos.shape,
        signed_sin.shape,
        angles,
    )
    return num_tokens, num_heads, head_size // 2

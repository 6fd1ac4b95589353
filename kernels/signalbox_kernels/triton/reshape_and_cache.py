"""Writes new tokens' K and V to their slots, after PagedAttention (Kwon et al., SOSP 2023).

A program takes one token's K or V, all heads of it, because a token's slot is one address.
"""

import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton.int8_codes import inverse_and_scales, magnitudes, to_codes
from signalbox_kernels.triton.launch import (
    await_kernels_before,
    check,
    check_cache,
    check_tensors,
    launch_options,
    next_power_of_2,
    scale_strides,
)


@triton.jit
def to_cache(values, inverse_scale, TYPE: tl.constexpr):
    """Returns K or V as a cache of a type holds it: as it is, or scaled in E4M3."""
    if TYPE.is_fp8e4nv():
        scaled = values.to(tl.float32) * inverse_scale
        values = tl.clamp(scaled, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL).to(TYPE)
    return values


@triton.jit
def _reshape_and_cache_kernel(
    key,
    value,
    kv_cache,
    token_scales,
    slot_mapping,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    block_stride,
    side_stride,
    offset_stride,
    head_stride,
    scale_block_stride,
    scale_side_stride,
    scale_offset_stride,
    scale_head_stride,
    num_heads,
    head_size,
    block_size,
    inverse_k_scale,
    inverse_v_scale,
    HAS_SCALES: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    await_kernels_before(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)  # offsets in a cache exceed 2^31
    if slot >= 0:
        heads = tl.arange(0, PADDED_HEADS)
        head = heads[:, None]
        element = tl.arange(0, PADDED_SIZE)[None, :]
        mask = (head < num_heads) & (element < head_size)
        block, offset = slot // block_size, slot % block_size
        target = block * block_stride + offset * offset_stride
        target = kv_cache + target + head * head_stride + element
        k = key + token * key_token_stride + head * key_head_stride + element
        v = value + token * value_token_stride + head * value_head_stride + element
        new_k = tl.load(k, mask=mask, other=0.0)
        new_v = tl.load(v, mask=mask, other=0.0)
        if HAS_SCALES:
            scale_of = token_scales + block * scale_block_stride + offset * scale_offset_stride
            scale_of += heads * scale_head_stride
            inverse, scales = inverse_and_scales(magnitudes(new_k))
            tl.store(scale_of, scales, mask=heads < num_heads)
            new_k = to_codes(new_k, inverse)
            inverse, scales = inverse_and_scales(magnitudes(new_v))
            tl.store(scale_of + scale_side_stride, scales, mask=heads < num_heads)
            new_v = to_codes(new_v, inverse)
        else:
            new_k = to_cache(new_k, inverse_k_scale, kv_cache.dtype.element_ty)
            new_v = to_cache(new_v, inverse_v_scale, kv_cache.dtype.element_ty)
        tl.store(target, new_k, mask=mask)
        tl.store(target + side_stride, new_v, mask=mask)


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    token_scales: Tensor | None = None,
    dependent: bool = False,
) -> None:
    """Writes each token's K and V to its slot; `ops.reshape_and_cache` is the contract.

    Args:
        dependent: see `launch_options`.
    """
    op = "reshape_and_cache"
    check_tensors(op, key, value, kv_cache, slot_mapping)
    check_cache(op, kv_cache, token_scales, key, value)
    num_tokens, num_heads, head_size = key.shape
    check(value.shape == key.shape, "{}: K is {}, V is {}", op, key.shape, value.shape)
    check(
        kv_cache.shape[1] == 2 and kv_cache.shape[3:] == key.shape[1:],
        "{}: the cache is {}, K is {}",
        op,
        kv_cache.shape,
        key.shape,
    )
    check(slot_mapping.shape == (num_tokens,), f"{op}: there must be one slot for each token")
    if not num_tokens:
        return
    _reshape_and_cache_kernel[(num_tokens,)](
        key,
        value,
        kv_cache,
        kv_cache if token_scales is None else token_scales,
        slot_mapping,
        *key.stride()[:2],
        *value.stride()[:2],
        *kv_cache.stride()[:4],
        *scale_strides(token_scales),
        num_heads,
        head_size,
        kv_cache.shape[2],
        1.0 / k_scale,
        1.0 / v_scale,
        HAS_SCALES=token_scales is not None,
        PADDED_HEADS=next_power_of_2(num_heads),
        PADDED_SIZE=next_power_of_2(head_size),
        **launch_options(dependent),
    )

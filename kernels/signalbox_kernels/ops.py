"""The ops that a model step is made of: contracts, and dispatch to the device's implementation.

A contract states shapes, dtypes and what is written; `torch/reference.py` is the plain Torch
meaning that every implementation must equal. The layout of the cache follows PagedAttention (Kwon
et al., SOSP 2023): K and V of a token live in a slot of a block, and a sequence finds its blocks in
a table.

A layer's cache is always passed as a view of shape [num_blocks, 2, block_size, num_kv_heads,
head_size] (index 0 of the second dimension is K, 1 is V). Its strides are the caller's choice, with
the last dimension contiguous. Its elements are of the type of K and V, or of float8_e4m3fn: then
it holds K / k_scale and V / v_scale, rounded to nearest, and what is beyond +-448 as +-448. Or they
are int8: then `token_scales` is a view of shape [num_blocks, 2, block_size, num_kv_heads] float32
beside it, of a scale for each token and head, which is 1/127 of the largest magnitude.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from signalbox_kernels.torch import experts, int4, reference
from signalbox_kernels.torch.experts import ExpertWeights
from signalbox_kernels.torch.int4 import Int4Weight
from signalbox_kernels.torch.registry import implementation_of, register_reference

for _name in (
    "reshape_and_cache",
    "paged_attention",
    "copy_blocks",
    "swap_blocks",
    "rms_norm",
    "fused_add_rms_norm",
    "rotary_embedding",
    "rotary_and_cache",
    "silu_and_mul",
    "rms_norm_linear",
    "linear_add",
    "gather_logprobs",
    "quantize_fp8",
    "fp8_linear",
):
    register_reference(_name, getattr(reference, _name))
register_reference("mix_experts", experts.mix_experts)
register_reference("w4a16_linear", int4.w4a16_linear)


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
    implementation_of("reshape_and_cache", key.device)(
        key,
        value,
        kv_cache,
        slot_mapping,
        k_scale=k_scale,
        v_scale=v_scale,
        token_scales=token_scales,
    )


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
    """Attention of packed queries over K and V in blocks; prefill chunks and decodes mix.

    Sequence i has queries query_start[i]:query_start[i + 1], which are the last tokens of its
    context: the last query sits at position context_lens[i] - 1. A query at position p sees keys at
    positions <= p, or all of them unless attention is causal; and those less than sliding_window
    away if there is one. Slots past the context are not read.

    Args:
        query: [num_tokens, num_heads, head_size]; num_heads is a multiple of num_kv_heads.
        kv_cache: one layer's view, [num_blocks, 2, block_size, num_kv_heads, head_size].
        query_start: [num_seqs + 1] int64, ascending from 0.
        context_lens: [num_seqs] int64, the chunk included.
        block_tables: [num_seqs, max_blocks] int32; entries past a sequence's context are ignored.
        scale: factor of the scores before softmax.
        is_causal: False if queries see later keys, too.
        sliding_window: how many positions a query sees on a side, itself included.
        soft_cap: scores become soft_cap * tanh(score / soft_cap) before mask and softmax.
        k_scale, v_scale: factors of the cache's K and V.
        token_scales: factors of each token's and head's K and V in int8.

    Returns:
        [num_tokens, num_heads, head_size], the dtype of `query`.
    """
    attend = implementation_of("paged_attention", query.device)
    return cast(
        Tensor,
        attend(
            query,
            kv_cache,
            query_start=query_start,
            context_lens=context_lens,
            block_tables=block_tables,
            scale=scale,
            is_causal=is_causal,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
            k_scale=k_scale,
            v_scale=v_scale,
            token_scales=token_scales,
        ),
    )


def copy_blocks(pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copies whole blocks within a pool: block src[i] becomes block dst[i], bit for bit.

    Args:
        pool: [num_blocks, block_bytes] uint8; written.
        src, dst: [num_copies] int64 on the CPU; distinct destinations, none of them a source.
    """
    implementation_of("copy_blocks", pool.device)(pool, src, dst)


def swap_blocks(src_pool: Tensor, dst_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copies whole blocks between pools, which may be on different devices, bit for bit.

    Args:
        src_pool: [num_src_blocks, block_bytes] uint8.
        dst_pool: [num_dst_blocks, block_bytes] uint8; written.
        src, dst: [num_copies] int64 on the CPU; distinct destinations.
    """
    device = dst_pool.device if src_pool.device.type == "cpu" else src_pool.device
    implementation_of("swap_blocks", device)(src_pool, dst_pool, src, dst)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Returns x divided by its root mean square over the last dimension, in float32, times
    weight.

    Args:
        x: [..., size].
        weight: [size], the dtype of `x`.

    Returns:
        weight * (the normalised x rounded to its dtype), the shape and dtype of `x`.
    """
    return cast(Tensor, implementation_of("rms_norm", x.device)(x, weight, eps=eps))


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Adds `x` to `residual` in place, and returns the rms_norm of the sum.

    Args:
        x: [num_tokens, size].
        residual: [num_tokens, size]; written.
        weight: [size].
    """
    norm = implementation_of("fused_add_rms_norm", x.device)
    return cast(Tensor, norm(x, residual, weight, eps=eps))


def rotary_embedding(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> None:
    """Rotates the pairs (i, i + head_size / 2) of each head by its token's angles, in place.

    With the sign of the rotation in the table, out = x * cos + roll(x, head_size / 2) * signed_sin.

    Args:
        heads: [num_tokens, num_heads, head_size], queries and keys alike; written.
        cos: [num_tokens, 1, head_size], the dtype of `heads`.
        signed_sin: likewise; the first half of the last dimension is negated.
    """
    implementation_of("rotary_embedding", heads.device)(heads, cos, signed_sin)


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
    rotate = implementation_of("rotary_and_cache", query.device)
    rotate(
        query,
        key_value,
        cos,
        signed_sin,
        kv_cache,
        slot_mapping,
        k_scale=k_scale,
        v_scale=v_scale,
        token_scales=token_scales,
        norms=norms,
        eps=eps,
    )


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Returns silu(gate) * up.

    Args:
        gate_up: [num_tokens, 2 * size]: gate, then up.

    Returns:
        [num_tokens, size].
    """
    return cast(Tensor, implementation_of("silu_and_mul", gate_up.device)(gate_up))


def rms_norm_linear(
    x: Tensor,
    norm: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    eps: float,
    is_gated: bool = False,
) -> Tensor:
    """Returns rms_norm(x) @ weight.T + bias, or silu_and_mul of that.

    Implementations beside the reference take at most 16 rows, of bfloat16 or float32, and may leave
    roundings of the norm out.

    Args:
        x: [num_tokens, in_features].
        norm: [in_features], the weight of rms_norm.
        weight: [out_features, in_features]: gate, then up if it is gated.
        bias: [out_features].

    Returns:
        [num_tokens, out_features], or half as many columns if it is gated.
    """
    product = implementation_of("rms_norm_linear", x.device)
    return cast(Tensor, product(x, norm, weight, bias, eps=eps, is_gated=is_gated))


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> None:
    """Adds x @ weight.T + bias to `residual` in place; rows and types are as of `rms_norm_linear`.

    Args:
        x: [num_tokens, in_features].
        weight: [out_features, in_features].
        bias: [out_features].
        residual: [num_tokens, out_features]; written.
    """
    implementation_of("linear_add", x.device)(x, weight, bias, residual)


def mix_experts(
    x: Tensor,
    logits: Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    *,
    experts_per_token: int,
    renormalise: bool,
) -> Tensor:
    """Sums the outputs of each token's experts by their shares.

    Expert e of a row computes down[e] @ silu_and_mul(gate_up[e] @ row). A token's experts are those
    of its highest logits, and the shares their softmax over all experts, in float32.

    Args:
        x: [num_tokens, hidden_size].
        logits: [num_tokens, num_experts], of the router; a NaN makes its row of the result NaN.
        gate_up: of [2 * size, hidden_size]: gate, then up.
        down: of [hidden_size, size]. Both are held alike: in the dtype of `x`, or in E4M3, whose
            values are multiplied as they are, with rows that are not rounded to it.
        experts_per_token: at most num_experts.
        renormalise: makes the shares of a token sum to 1.

    Returns:
        [num_tokens, hidden_size], the dtype of `x`.
    """
    mix = implementation_of("mix_experts", x.device)
    return cast(
        Tensor,
        mix(
            x,
            logits,
            gate_up,
            down,
            experts_per_token=experts_per_token,
            renormalise=renormalise,
        ),
    )


class GatheredLogprobs(NamedTuple):
    """Result of `gather_logprobs`."""

    logprobs: Tensor
    """[num_rows] float32, of each row's token."""
    ranks: Tensor
    """[num_rows] int64, how many tokens are no less likely than it, itself included."""
    top_logprobs: Tensor
    """[num_rows, num_top] float32, descending."""
    top_token_ids: Tensor
    """[num_rows, num_top] int64."""


def gather_logprobs(logits: Tensor, tokens: Tensor, *, num_top: int) -> GatheredLogprobs:
    """Returns log probabilities of one token a row and of the likeliest. A row with a NaN gives
    NaN.

    Args:
        logits: [num_rows, vocab_size] float32.
        tokens: [num_rows] int64, in [0, vocab_size).
        num_top: number of likeliest tokens, at most vocab_size.
    """
    gather = implementation_of("gather_logprobs", logits.device)
    return GatheredLogprobs(*gather(logits, tokens, num_top=num_top))


def quantize_fp8(
    x: Tensor, *, group_size: int | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Rounds rows to E4M3, the largest value of a row or of a group to the largest code.

    Args:
        x: [num_rows, size].
        group_size: elements that share a scale; None stands for a row's.
        scale: a static one of all rows; what it takes beyond the largest code becomes that.

    Returns:
        [num_rows, size] float8_e4m3fn, and [num_rows, num_groups] float32: a value is code * scale.
    """
    quantize = implementation_of("quantize_fp8", x.device)
    codes, scales = quantize(x, group_size=group_size, scale=scale)
    return codes, scales


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    *,
    rows_per_scale: int,
    x_scale: float | None = None,
) -> Tensor:
    """Returns x @ matrix.T + bias for a matrix in E4M3, with x rounded by `quantize_fp8`.

    Products are summed in float32.

    Args:
        x: [num_tokens, in_features].
        weight: [out_features, in_features] float8_e4m3fn.
        scales: [out_features / rows_per_scale, num_groups] float32, rounded up. One group is all
            columns; of several each is of 128 columns, and x is rounded in groups of 128 too.
        bias: [out_features], the dtype of `x`.
        rows_per_scale: rows that share a scale: 1, or a power of two up to 128.
        x_scale: a static scale that x is rounded with.

    Returns:
        [num_tokens, out_features], the dtype of `x`.
    """
    product = implementation_of("fp8_linear", x.device)
    options = {"rows_per_scale": rows_per_scale, "x_scale": x_scale}
    return cast(Tensor, product(x, weight, scales, bias, **options))


def w4a16_linear(x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
    """Returns x @ matrix.T + bias for a matrix of 4-bit codes.

    A weight is (code - zero) * scale, rounded once to the dtype of `x`. Products are summed in
    float32.

    Args:
        x: [num_tokens, in_features].
        weight: [out_features, in_features].
        bias: [out_features], the dtype of `x`.

    Returns:
        [num_tokens, out_features], the dtype of `x`.
    """
    product = implementation_of("w4a16_linear", x.device)
    return cast(Tensor, product(x, weight, bias))


def is_finite(rows: Tensor) -> Tensor:
    """Returns which rows contain neither NaN nor infinity.

    Args:
        rows: [num_rows, size] float32.

    Returns:
        [num_rows] bool.
    """
    finite = rows.sum(dim=-1).isfinite()  # one pass, and NaN and infinity both survive a sum
    doubtful = (~finite).nonzero().flatten()
    if doubtful.numel():  # a sum of large numbers may overflow
        finite[doubtful] = torch.isfinite(rows[doubtful]).all(dim=-1)
    return finite

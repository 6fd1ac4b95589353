"""Ops that treat each token by itself, in plain Torch."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Returns x divided by its root mean square over the last dimension, in float32, times
    weight.

    Args:
        x: [..., size].
        weight: [size], the dtype of `x`.

    Returns:
        weight * (the normalised x rounded to its dtype), the shape and dtype of `x`.
    """
    wide = x.float()
    scale = wide.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Adds `x` to `residual` in place, and returns the rms_norm of the sum.

    Args:
        x: [num_tokens, size].
        residual: [num_tokens, size]; written.
        weight: [size].
    """
    return rms_norm(residual.add_(x), weight, eps=eps)


def rotary_embedding(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> None:
    """Rotates the pairs (i, i + head_size / 2) of each head by its token's angles, in place.

    With the sign of the rotation in the table, out = x * cos + roll(x, head_size / 2) * signed_sin.

    Args:
        heads: [num_tokens, num_heads, head_size], queries and keys alike; written.
        cos: [num_tokens, 1, head_size], the dtype of `heads`.
        signed_sin: likewise; the first half of the last dimension is negated.
    """
    turned = heads.roll(heads.shape[-1] // 2, dims=-1).mul_(signed_sin)
    heads.mul_(cos).add_(turned)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Returns silu(gate) * up.

    Args:
        gate_up: [num_tokens, 2 * size]: gate, then up.

    Returns:
        [num_tokens, size].
    """
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
    product = F.linear(rms_norm(x, norm, eps=eps), weight, bias)
    return silu_and_mul(product) if is_gated else product


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> None:
    """Adds x @ weight.T + bias to `residual` in place; rows and types are as of `rms_norm_linear`.

    Args:
        x: [num_tokens, in_features].
        weight: [out_features, in_features].
        bias: [out_features].
        residual: [num_tokens, out_features]; written.
    """
    residual.add_(F.linear(x, weight, bias))


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
    table = logits.log_softmax(dim=-1)
    of_token = table.gather(1, tokens[:, None])
    top = table.topk(num_top)
    ranks = (table >= of_token).sum(dim=-1)
    return GatheredLogprobs(of_token.flatten(), ranks, top.values, top.indices)


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

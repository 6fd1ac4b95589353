"""Recurrent layers in plain Torch: states that every token changes, in float32, token by token.

Tokens of a step lie one behind the other, cut to runs. A run reads a state and leaves one behind,
perhaps in the same place, so that a sequence can leave its state at a position and go on elsewhere.
"""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Runs(NamedTuple):
    """Neighbouring tokens of a sequence, one run after the other."""

    start: Tensor
    """[num_runs + 1] int64."""
    reads: Tensor
    """[num_runs] int64, index of the state before a run; negative for zeros."""
    writes: Tensor
    """[num_runs] int64, index of the state behind it, which a later run may read."""

    def each(self, states: Tensor) -> Iterator[tuple[range, Tensor, Tensor]]:
        """Yields the tokens of each run, the state before it, and where to write that behind it."""
        bounds, reads, writes = (part.tolist() for part in self)
        for run, (read, write) in enumerate(zip(reads, writes, strict=True)):
            before = torch.zeros_like(states[0]) if read < 0 else states[read].clone()
            yield range(bounds[run], bounds[run + 1]), before, states[write]


def causal_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, runs: Runs, *, is_silu: bool
) -> Tensor:
    """Returns each channel's sum of its last inputs times their weights, or silu of that.

    Args:
        x: [num_tokens, num_channels].
        weight: [num_channels, width], of the oldest input first.
        bias: [num_channels].
        states: [num_states, width - 1, num_channels], the last inputs, the oldest first; written.

    Returns:
        [num_tokens, num_channels], the dtype of `x`.
    """
    out = torch.empty_like(x)
    width = weight.shape[1]
    for tokens, before, behind in runs.each(states):
        inputs = torch.cat([before.to(x.dtype), x[tokens.start : tokens.stop]])
        sums = (inputs.unfold(0, width, 1).float() * weight.float()).sum(dim=-1)
        if bias is not None:
            sums += bias.float()
        out[tokens.start : tokens.stop] = F.silu(sums) if is_silu else sums
        behind.copy_(inputs[1 - width :])
    return out


def time_steps(x: Tensor, biases: Tensor, *, least: float = 0.0, most: float = inf) -> Tensor:
    """Returns softplus(x + biases) within limits, in float32, which may be above the largest."""
    return F.softplus(x.float() + biases.float()).clamp(least, most)


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    strength: Tensor,
    states: Tensor,
    runs: Runs,
) -> Tensor:
    """Replaces, in each head's state, a part of what it has at a key by a value; returns what it
    then has at the queries (Yang et al., 2024).

    Queries and keys are divided by their lengths, and queries by sqrt(key_size), too.

    Args:
        query, key: [num_tokens, num_key_heads, key_size]; each serves as many neighbouring heads.
        value: [num_tokens, num_heads, value_size].
        decay: [num_tokens, num_heads], the logarithm of what is left of the state.
        strength: [num_tokens, num_heads], the part that is replaced.
        states: [num_states, num_heads, key_size, value_size] float32; written.

    Returns:
        [num_tokens, num_heads, value_size], the dtype of `value`.
    """
    query, key = (_unit(part, value.shape[1]) for part in (query, key))
    query = query / query.shape[-1] ** 0.5
    left, part, out = decay.float().exp(), strength.float(), torch.empty_like(value)
    for tokens, state, behind in runs.each(states):
        for token in tokens:
            state = state * left[token, :, None, None]
            known = torch.einsum("hk,hkv->hv", key[token], state)
            change = (value[token].float() - known) * part[token, :, None]
            state = state + key[token, :, :, None] * change[:, None]
            out[token] = torch.einsum("hk,hkv->hv", query[token], state)
        behind.copy_(state)
    return out


def _unit(heads: Tensor, num_heads: int) -> Tensor:
    """Returns vectors of length 1 for each head, in float32."""
    wide = heads.float().repeat_interleave(num_heads // heads.shape[1], dim=1)
    return wide * torch.rsqrt(wide.square().sum(dim=-1, keepdim=True) + 1e-6)


def selective_scan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    steps: Tensor,
    rates: Tensor,
    skips: Tensor | None,
    states: Tensor,
    runs: Runs,
) -> Tensor:
    """Lets each head's state decay, and adds each token's value at its key; returns what it then
    has at the queries (Mamba-2; Dao and Gu, 2024).

    Args:
        query, key: C and B, [num_tokens, num_key_heads, key_size]; each serves as many neighbouring
            heads.
        value: x, [num_tokens, num_heads, value_size].
        steps: [num_tokens, num_heads], as `time_steps` returns them.
        rates: A, [num_heads], below 0.
        skips: D, [num_heads], factors of values that are added to the result.
        states: [num_states, num_heads, key_size, value_size] float32; written.

    Returns:
        [num_tokens, num_heads, value_size], the dtype of `value`.
    """
    group = value.shape[1] // key.shape[1]
    query, key = (part.float().repeat_interleave(group, dim=1) for part in (query, key))
    left, out = (steps * rates.float()).exp(), torch.empty_like(value)
    for tokens, state, behind in runs.each(states):
        for token in tokens:
            change = value[token].float() * steps[token, :, None]
            state = state * left[token, :, None, None] + key[token, :, :, None] * change[:, None]
            found = torch.einsum("hk,hkv->hv", query[token], state)
            if skips is not None:
                found += value[token].float() * skips.float()[:, None]
            out[token] = found
        behind.copy_(state)
    return out


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, *, num_groups: int, eps: float, is_gated_first: bool
) -> Tensor:
    """Returns RMSNorm of groups of columns, times silu of a gate before or after it, in float32.

    Args:
        x, gate: [num_tokens, size].
        weight: [size].

    Returns:
        [num_tokens, size], the dtype of `x`.
    """
    wide, share = x.float(), F.silu(gate.float())
    groups = (wide * share if is_gated_first else wide).view(len(x), num_groups, -1)
    scale = groups.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    normed = (groups * scale).view(x.shape) * weight.float()
    return (normed if is_gated_first else normed * share).to(x.dtype)

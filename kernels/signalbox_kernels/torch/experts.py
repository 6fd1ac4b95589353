"""Mixtures of experts in plain Torch, and how the weights of all experts of a layer are held."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from signalbox_kernels.torch.fp8 import FP8_GROUP
from signalbox_kernels.torch.row_ops import silu_and_mul


class ExpertWeights(NamedTuple):
    """A matrix [out_features, in_features] of each expert, in floats or in E4M3."""

    weight: Tensor
    """[num_experts, out_features, in_features], contiguous."""
    scales: Tensor | None = None
    """Scales of E4M3, as `ops.fp8_linear` has them for all matrices one below the other."""
    rows_per_scale: int = 1

    def apply(self, index: int, x: Tensor) -> Tensor:
        """Returns x @ matrix.T for one expert, in the dtype of `x`."""
        if self.scales is None:
            return F.linear(x, self.weight[index])
        _, out_features, in_features = self.weight.shape
        row = torch.arange(index * out_features, (index + 1) * out_features, device=x.device)
        of_rows = self.scales[row // self.rows_per_scale]
        width = FP8_GROUP if of_rows.shape[1] > 1 else in_features
        of_values = of_rows.repeat_interleave(width, dim=1)[:, :in_features]
        return F.linear(x.float(), self.weight[index].float() * of_values).to(x.dtype)


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

    def expert(index: int, rows: Tensor) -> Tensor:
        return down.apply(index, silu_and_mul(gate_up.apply(index, rows)))

    return mix(x, logits, expert, experts_per_token=experts_per_token, renormalise=renormalise)


def mix(
    x: Tensor,
    logits: Tensor,
    expert: Callable[[int, Tensor], Tensor],
    *,
    experts_per_token: int,
    renormalise: bool,
) -> Tensor:
    """Each expert that is chosen at all computes its tokens in one call of `expert`.

    Waits for the device, to learn how many tokens an expert has.
    """
    shares, chosen = logits.softmax(dim=-1, dtype=torch.float32).topk(experts_per_token, dim=-1)
    if renormalise:
        shares /= shares.sum(dim=-1, keepdim=True)
    by_expert = chosen.flatten().argsort(stable=True)
    tokens, weighed = by_expert // experts_per_token, shares.flatten()[by_expert, None]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    start = 0
    for index, count in enumerate(chosen.flatten().bincount(minlength=logits.shape[1]).tolist()):
        if count:
            span = slice(start, start + count)
            out.index_add_(0, tokens[span], expert(index, x[tokens[span]]) * weighed[span])
            start += count
    return out.to(x.dtype)

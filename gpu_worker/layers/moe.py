"""Mixture of experts (Shazeer et al., 2017) with a top-k router, tensor-parallel within experts.

Tokens are sorted by expert, so that each expert that is chosen at all computes its tokens in one
product: time goes with the experts in use, not with tokens times k.
"""

import torch
from torch import Tensor

from gpu_worker.device.parallel_group import ParallelGroup
from gpu_worker.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from gpu_worker.layers.weight_placement import Placement, WeightTarget
from signalbox_kernels import ops


class TopKRouter:
    """Chooses the experts of each token; every rank computes the same."""

    def __init__(
        self,
        *,
        hidden_size: int,
        num_experts: int,
        experts_per_token: int,
        renormalise: bool,
        placement: Placement,
    ) -> None:
        self._k = experts_per_token
        self._renormalise = renormalise
        self.gate = MergedColumnParallelLinear(
            in_features=hidden_size,
            out_features={"gate": num_experts},
            bias=False,
            placement=placement,
            group=ParallelGroup(),
            is_plain=True,
        )

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[num_tokens, hidden_size] to shares, in the dtype of `x`, and experts.

        Both are [num_tokens, experts_per_token].
        """
        shares, experts = self.gate(x).softmax(dim=-1, dtype=torch.float32).topk(self._k, dim=-1)
        if self._renormalise:
            shares /= shares.sum(dim=-1, keepdim=True)
        return shares.to(x.dtype), experts


class Expert:
    """One SwiGLU feed-forward, divided over ranks; the caller sums the ranks' results."""

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self.gate_up = MergedColumnParallelLinear(
            in_features=hidden_size,
            out_features={"gate": intermediate_size, "up": intermediate_size},
            bias=False,
            placement=placement,
            group=group,
        )
        self.down = RowParallelLinear(
            in_features=intermediate_size,
            out_features=hidden_size,
            bias=False,
            placement=placement,
            group=group,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.down.partial(ops.silu_and_mul(self.gate_up(x)))

    def weight_targets(self, *, gate: str, up: str, down: str) -> dict[str, WeightTarget]:
        """Args: gate, up, down: names of the matrices in the checkpoint."""
        return self.gate_up.weight_targets(gate=gate, up=up) | self.down.weight_targets(down)

    def finish(self) -> None:
        self.gate_up.finish()
        self.down.finish()


class MixtureOfExperts:
    """A feed-forward of several experts, with the router that chooses among them."""

    def __init__(self, router: TopKRouter, experts: list[Expert], group: ParallelGroup) -> None:
        self.router = router
        self.experts = experts
        self._group = group

    def __call__(self, x: Tensor) -> Tensor:
        shares, chosen = self.router(x)
        by_expert = chosen.flatten().argsort(stable=True)
        tokens = by_expert // chosen.shape[1]
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        weighed = shares.flatten()[by_expert, None]
        out = torch.zeros_like(x)
        start = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                span = slice(start, start + count)
                out.index_add_(0, tokens[span], expert(x[tokens[span]]).mul_(weighed[span]))
                start += count
        return self._group.all_reduce(out)

    def finish(self) -> None:
        self.router.gate.finish()
        for expert in self.experts:
            expert.finish()

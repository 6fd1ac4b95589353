"""Mixture of experts (Shazeer et al., 2017) with a top-k router, tensor-parallel within experts."""

from functools import partial
from typing import NamedTuple

from torch import Tensor

from gpu_worker.device.parallel_group import ParallelGroup
from gpu_worker.layers.linear import MergedColumnParallelLinear
from gpu_worker.layers.weight_placement import Placement, WeightTarget, copy_checked
from signalbox_kernels import ops
from signalbox_kernels.torch import reference, registry
from signalbox_kernels.torch.linear import PackedWeight, pack_weight


class ExpertNames(NamedTuple):
    """Names of an expert's matrices in a checkpoint, without `.weight`."""

    gate: str
    up: str
    down: str


class _ExpertMatrices:
    """A matrix [out_features, in_features] of each expert.

    They are one tensor where a mixture is one op. On a CPU without such an op each is packed, which
    multiplies up to twice as fast.
    """

    def __init__(
        self, *, num_experts: int, out_features: int, in_features: int, placement: Placement
    ) -> None:
        self.stacked: Tensor | None = None
        self.packed: list[PackedWeight] = []
        shape = (out_features, in_features)
        if placement.device.type != "cpu" or registry.has_own("mix_experts", placement.device):
            self.stacked = placement.empty(num_experts, *shape)
            self._raw = list(self.stacked.unbind())
        else:
            self._raw = [placement.empty(*shape) for _ in range(num_experts)]

    def load(self, expert: int, shard: Tensor, *, part: int = 0, num_parts: int = 1) -> None:
        """Takes this rank's share of a matrix, or of one of several of equal size above it."""
        copy_checked(self._raw[expert].chunk(num_parts)[part], shard)

    def finish(self) -> None:
        """Packs what is not stacked, and drops each plain matrix after that."""
        self._raw.reverse()
        while self._raw:
            raw = self._raw.pop()
            if self.stacked is None:
                self.packed.append(pack_weight(raw))


class MixtureOfExperts:
    """A feed-forward of several SwiGLU experts, with the router that chooses among them.

    Every rank has all experts, a share of each, and routes every token as the others do.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        num_experts: int,
        experts_per_token: int,
        expert_size: int,
        renormalise: bool,
        names: ExpertNames,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        """Args: renormalise: makes the shares of a token's experts sum to 1."""
        self._names = names
        self._num_experts = num_experts
        self._experts_per_token = experts_per_token
        self._renormalise = renormalise
        self._group = group
        size = group.divide(expert_size, "size of an expert")
        self.router = MergedColumnParallelLinear(
            in_features=hidden_size,
            out_features={"router": num_experts},
            bias=False,
            placement=placement,
            group=ParallelGroup(),
            is_plain=True,
        )
        self._gate_up = _ExpertMatrices(
            num_experts=num_experts,
            out_features=2 * size,
            in_features=hidden_size,
            placement=placement,
        )
        self._down = _ExpertMatrices(
            num_experts=num_experts,
            out_features=hidden_size,
            in_features=size,
            placement=placement,
        )

    def __call__(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        gate_up, down = self._gate_up.stacked, self._down.stacked
        if gate_up is not None and down is not None:
            mix = partial(ops.mix_experts, gate_up=gate_up, down=down)
        else:
            mix = partial(reference.mix, expert=self._expert)
        k = self._experts_per_token
        out = mix(x, logits, experts_per_token=k, renormalise=self._renormalise)
        return self._group.all_reduce(out)

    def _expert(self, index: int, x: Tensor) -> Tensor:
        gate_up = self._gate_up.packed[index].apply(x, None)
        return self._down.packed[index].apply(ops.silu_and_mul(gate_up), None)

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = self.router.weight_targets(router="gate")
        for index in range(self._num_experts):
            prefix = f"experts.{index}"
            for part, name in enumerate((self._names.gate, self._names.up)):
                targets[f"{prefix}.{name}.weight"] = partial(self._load_gate_up, index, part)
            targets[f"{prefix}.{self._names.down}.weight"] = partial(self._load_down, index)
        return targets

    def _load_gate_up(self, expert: int, part: int, tensor: Tensor) -> None:
        self._gate_up.load(expert, self._group.shard(tensor, 0), part=part, num_parts=2)

    def _load_down(self, expert: int, tensor: Tensor) -> None:
        self._down.load(expert, self._group.shard(tensor, 1))

    def finish(self) -> None:
        self.router.finish()
        self._gate_up.finish()
        self._down.finish()

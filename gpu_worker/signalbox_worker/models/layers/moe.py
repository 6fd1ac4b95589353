"""Mixture of experts (Shazeer et al., 2017) with a top-k router, tensor-parallel within experts."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import experts, registry
from signalbox_kernels.torch.experts import ExpertWeights
from signalbox_kernels.torch.linear import PackedWeight, pack_weight
from signalbox_worker.device.parallel_group import ParallelGroup
from signalbox_worker.files.checkpoints.weight_names import ExpertNames
from signalbox_worker.files.quantised.form import WEIGHT
from signalbox_worker.models.layers.adapters import BatchAdapters
from signalbox_worker.models.layers.fp8 import Fp8BlockMatrix, Fp8Matrix, HeldFp8
from signalbox_worker.models.layers.linear import Linear, MatrixTarget, MergedColumnParallelLinear
from signalbox_worker.models.layers.matrices import MatrixFormat, MatrixPart, shape_of
from signalbox_worker.models.layers.weight_placement import Placement, WeightTarget, checked_shape


class _PlainExperts:
    """The matrices of all experts in the model's dtype. Satisfies `Matrix`.

    They are one tensor where a mixture is one op. On a CPU without such an op each is packed, which
    multiplies up to twice as fast.
    """

    def __init__(
        self,
        parts: Sequence[MatrixPart],
        placement: Placement,
        *,
        num_experts: int,
        is_stacked: bool,
    ) -> None:
        out_features, in_features = shape_of(parts)
        self._num_rows = out_features // num_experts
        shape = (self._num_rows, in_features)
        self.stacked: Tensor | None = None
        self.packed: list[PackedWeight] = []
        if is_stacked:
            self.stacked = placement.empty(num_experts, *shape)
            self._raw = list(self.stacked.unbind())
        else:
            self._raw = [placement.empty(*shape) for _ in range(num_experts)]

    def load(self, tensors: Mapping[str, Tensor], part: MatrixPart) -> None:
        weight = checked_shape(tensors[WEIGHT], part.whole)
        expert, start = divmod(part.start, self._num_rows)
        rows = self._raw[expert].narrow(0, start, part.num_rows)
        rows.copy_(weight[part.rows, part.columns])

    def finish(self) -> None:
        """Packs what is not stacked, and drops each plain matrix after that."""
        self._raw.reverse()
        while self._raw:
            raw = self._raw.pop()
            if self.stacked is None:
                self.packed.append(pack_weight(raw))

    def apply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        raise TypeError("experts are multiplied by those of a token, not all with each")


class ExpertLinear(Linear):
    """The matrices of all experts of a layer, one below the other."""

    def __init__(
        self, parts: Mapping[str, MatrixPart], num_experts: int, placement: Placement
    ) -> None:
        self._num_experts = num_experts
        on_cpu = placement.device.type == "cpu"
        is_stacked = not on_cpu or registry.has_own("mix_experts", placement.device)
        plain = partial(_PlainExperts, num_experts=num_experts, is_stacked=is_stacked)
        super().__init__(
            parts, bias=False, placement=placement, is_plain=not is_stacked, plain_format=plain
        )
        self.can_round_inputs = not is_stacked  # the op takes inputs as they are

    def can_hold(self, matrix_format: MatrixFormat) -> bool:
        return super().can_hold(matrix_format) and matrix_format in (Fp8Matrix, Fp8BlockMatrix)

    def weight_targets(self) -> dict[str, WeightTarget]:
        return {f"{name}.weight": MatrixTarget(self, name) for name in self._parts}

    def stacked(self) -> ExpertWeights | None:
        """Returns all matrices as the op takes them; None if they are packed one by one."""
        matrix, n = self._matrix, self._num_experts
        if isinstance(matrix, HeldFp8):
            codes = matrix.codes.view(n, -1, matrix.codes.shape[1])
            return ExpertWeights(codes, matrix.scales, matrix.rows_per_scale)
        assert isinstance(matrix, _PlainExperts)
        return None if matrix.stacked is None else ExpertWeights(matrix.stacked)

    def multiply(self, expert: int, x: Tensor) -> Tensor:
        """Returns x @ matrix.T of one expert whose matrix is packed."""
        assert isinstance(self._matrix, _PlainExperts)
        packed = self._matrix.packed[expert]
        per_expert = len(self._parts) // self._num_experts
        own = islice(self._parts, expert * per_expert, (expert + 1) * per_expert)
        return self._rounded_product(partial(packed.apply, bias=None), x, own)


class MixtureOfExperts:
    """A feed-forward of several SwiGLU experts, with the router that chooses among them.

    Every shard has all experts, a part of each, and routes every token as the others do.
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
        self._experts_per_token = experts_per_token
        self._renormalise = renormalise
        self._group = group
        self.router = MergedColumnParallelLinear(
            in_features=hidden_size,
            out_features={"router": num_experts},
            bias=False,
            placement=placement,
            group=ParallelGroup(),
            is_plain=True,
        )
        size = group.divide(expert_size, "size of an expert")
        mine = group.own(size)
        every = slice(0, hidden_size)
        into, out_of = dict[str, MatrixPart](), dict[str, MatrixPart]()
        for index in range(num_experts):
            for name in (names.gate, names.up):
                start, whole = len(into) * size, (expert_size, hidden_size)
                into[f"experts.{index}.{name}"] = MatrixPart(start, mine, every, whole)
            start, whole = index * hidden_size, (hidden_size, expert_size)
            out_of[f"experts.{index}.{names.down}"] = MatrixPart(start, every, mine, whole)
        self.gate_up = ExpertLinear(into, num_experts, placement)
        self.down = ExpertLinear(out_of, num_experts, placement)

    def __call__(self, x: Tensor, adapters: BatchAdapters = ()) -> Tensor:
        assert not adapters, "adapters of experts are refused when they are loaded"
        logits = self.router(x)
        gate_up, down = self.gate_up.stacked(), self.down.stacked()
        if gate_up is not None and down is not None:
            mix = partial(ops.mix_experts, gate_up=gate_up, down=down)
        else:
            mix = partial(experts.mix, expert=self._expert)
        k = self._experts_per_token
        out = mix(x, logits, experts_per_token=k, renormalise=self._renormalise)
        return self._group.all_reduce(out)

    def _expert(self, index: int, x: Tensor) -> Tensor:
        return self.down.multiply(index, ops.silu_and_mul(self.gate_up.multiply(index, x)))

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = self.router.weight_targets(router="gate")
        for layer in (self.gate_up, self.down):
            targets |= layer.weight_targets()
        return targets

    def finish(self) -> None:
        self.router.finish()
        self.gate_up.finish()
        self.down.finish()

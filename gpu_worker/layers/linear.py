"""Linear layers, packed (Q, K and V in one matrix, gate and up in one) and tensor-parallel.

A layer is filled shard by shard through `load_weight` and `load_bias`, then `finish` hands the
matrix to the device's own layout. Until then it cannot be called.
"""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from gpu_worker.device.parallel_group import ParallelGroup
from gpu_worker.layers.weight_placement import Placement, WeightTarget, copy_checked
from signalbox_kernels.torch.linear import PackedWeight, pack_weight

_ALL = "all"


@dataclass(frozen=True, slots=True)
class _Part:
    """A run of output rows that is one tensor in the checkpoint."""

    start: int
    size: int


class _Linear:
    """A matrix [out_features, in_features] of this rank, and perhaps a bias, in named parts."""

    def __init__(
        self, *, in_features: int, parts: dict[str, int], bias: bool, placement: Placement
    ) -> None:
        out_features = sum(parts.values())
        self._parts: dict[str, _Part] = {}
        start = 0
        for name, size in parts.items():
            self._parts[name] = _Part(start, size)
            start += size
        self._raw: Tensor | None = placement.empty(out_features, in_features)
        self._bias = placement.empty(out_features) if bias else None
        self._packed: PackedWeight | None = None

    def finish(self) -> None:
        """Packs the weight, after all of it is loaded."""
        assert self._raw is not None
        self._packed = pack_weight(self._raw)
        self._raw = None

    def _weight_rows(self, part: _Part) -> Tensor:
        assert self._raw is not None, "weights are loaded before finish()"
        return self._raw.narrow(0, part.start, part.size)

    def _bias_rows(self, part: _Part) -> Tensor:
        assert self._bias is not None
        return self._bias.narrow(0, part.start, part.size)

    def _apply(self, x: Tensor) -> Tensor:
        assert self._packed is not None, "finish() comes before the first call"
        return self._packed.apply(x, self._bias)


class _ColumnParallelLinear(_Linear):
    """Output rows divided over the ranks."""

    def _shard(self, tensor: Tensor, part: str) -> Tensor:
        raise NotImplementedError

    def load_weight(self, tensor: Tensor, part: str) -> None:
        """Takes the checkpoint's whole matrix of `part`."""
        copy_checked(self._weight_rows(self._parts[part]), self._shard(tensor, part))

    def load_bias(self, tensor: Tensor, part: str) -> None:
        copy_checked(self._bias_rows(self._parts[part]), self._shard(tensor, part))

    def weight_targets(self, **names: str) -> dict[str, WeightTarget]:
        """Args: names: name of each part in the checkpoint, without `.weight` or `.bias`."""
        targets: dict[str, WeightTarget] = {}
        for part, name in names.items():
            targets[f"{name}.weight"] = partial(self.load_weight, part=part)
            if self._bias is not None:
                targets[f"{name}.bias"] = partial(self.load_bias, part=part)
        return targets

    def __call__(self, x: Tensor) -> Tensor:
        """Returns this rank's [num_tokens, out_features] for [num_tokens, in_features]."""
        return self._apply(x)


class MergedColumnParallelLinear(_ColumnParallelLinear):
    """Several column-parallel matrices as one product, such as gate and up."""

    def __init__(
        self,
        *,
        in_features: int,
        out_features: dict[str, int],
        bias: bool,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self._group = group
        super().__init__(
            in_features=in_features,
            parts={name: group.divide(size, name) for name, size in out_features.items()},
            bias=bias,
            placement=placement,
        )

    def _shard(self, tensor: Tensor, part: str) -> Tensor:
        return self._group.shard(tensor, 0)


class QKVParallelLinear(_ColumnParallelLinear):
    """Q, K and V as one product. K and V heads are repeated where there are fewer than ranks."""

    def __init__(
        self,
        *,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        bias: bool,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self.num_heads = group.divide(num_heads, "num_attention_heads")
        self.num_kv_heads = kv_heads_per_rank(num_kv_heads, group)
        self._group = group
        # Ranks that share a K and V head when there are fewer heads than ranks.
        self._kv_sharers = max(1, group.size // num_kv_heads)
        kv_size = self.num_kv_heads * head_size
        super().__init__(
            in_features=hidden_size,
            parts={"q": self.num_heads * head_size, "k": kv_size, "v": kv_size},
            bias=bias,
            placement=placement,
        )

    def _shard(self, tensor: Tensor, part: str) -> Tensor:
        if part == "q":
            return self._group.shard(tensor, 0)
        size = self._parts[part].size
        return tensor.narrow(0, self._group.rank // self._kv_sharers * size, size)


def kv_heads_per_rank(num_kv_heads: int, group: ParallelGroup) -> int:
    """Returns how many K and V heads a rank holds, at least one."""
    if group.size > num_kv_heads and group.size % num_kv_heads == 0:
        return 1
    return group.divide(num_kv_heads, "num_key_value_heads")


class RowParallelLinear(_Linear):
    """Input columns divided over the ranks; the results are summed."""

    def __init__(
        self,
        *,
        in_features: int,
        out_features: int,
        bias: bool,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self._group = group
        super().__init__(
            in_features=group.divide(in_features, "row-parallel input size"),
            parts={_ALL: out_features},
            bias=bias,
            placement=placement,
        )

    def load_weight(self, tensor: Tensor) -> None:
        """Takes the checkpoint's whole matrix."""
        copy_checked(self._weight_rows(self._parts[_ALL]), self._group.shard(tensor, 1))

    def load_bias(self, tensor: Tensor) -> None:
        """Loads the bias on rank 0 and zeros elsewhere, because the ranks' results are summed."""
        rows = self._bias_rows(self._parts[_ALL])
        copy_checked(rows, tensor)
        if self._group.rank:
            rows.zero_()

    def weight_targets(self, name: str) -> dict[str, WeightTarget]:
        """Args: name: the checkpoint's name, without `.weight` or `.bias`."""
        targets: dict[str, WeightTarget] = {f"{name}.weight": self.load_weight}
        if self._bias is not None:
            targets[f"{name}.bias"] = self.load_bias
        return targets

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [num_tokens, out_features] of this rank's [num_tokens, in_features]."""
        return self._group.all_reduce(self._apply(x))

    def partial(self, x: Tensor) -> Tensor:
        """Returns the same before the ranks' results are summed."""
        return self._apply(x)

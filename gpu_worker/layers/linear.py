"""Linear layers, packed (Q, K and V in one matrix, gate and up in one) and tensor-parallel.

A layer is filled shard by shard through `load_weight` and `load_bias`, then `finish` hands the
matrix to the device's own layout. Until then it cannot be called.
"""

from dataclasses import dataclass

from torch import Tensor

from gpu_worker.layers.parallel import ParallelGroup
from gpu_worker.layers.weights import Placement, copy_checked
from signalbox_kernels.linear import PackedWeight, pack_weight


@dataclass(frozen=True, slots=True)
class _Part:
    """A run of output rows that is one tensor in the checkpoint."""

    start: int
    size: int


class _Linear:
    """A matrix [out_features, in_features] of this rank, and perhaps a bias."""

    def __init__(
        self, *, in_features: int, out_features: int, bias: bool, placement: Placement
    ) -> None:
        self._raw: Tensor | None = placement.empty(out_features, in_features)
        self._bias = placement.empty(out_features) if bias else None
        self._packed: PackedWeight | None = None

    @property
    def has_bias(self) -> bool:
        return self._bias is not None

    def finish(self) -> None:
        """Packs the weight, after all of it is loaded."""
        assert self._raw is not None
        self._packed = pack_weight(self._raw)
        self._raw = None

    def take(self) -> tuple[Tensor, Tensor | None]:
        """Gives weight and bias away, after all of them are loaded, instead of packing them."""
        assert self._raw is not None
        weight, self._raw = self._raw, None
        return weight, self._bias

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
    """Output rows divided over the ranks; made of named parts."""

    def __init__(
        self, *, in_features: int, parts: dict[str, int], bias: bool, placement: Placement
    ) -> None:
        super().__init__(
            in_features=in_features,
            out_features=sum(parts.values()),
            bias=bias,
            placement=placement,
        )
        self._parts: dict[str, _Part] = {}
        start = 0
        for name, size in parts.items():
            self._parts[name] = _Part(start, size)
            start += size

    def _shard(self, tensor: Tensor, part: str) -> Tensor:
        raise NotImplementedError

    def load_weight(self, tensor: Tensor, part: str) -> None:
        """Takes the checkpoint's whole matrix of `part`."""
        copy_checked(self._weight_rows(self._parts[part]), self._shard(tensor, part))

    def load_bias(self, tensor: Tensor, part: str) -> None:
        copy_checked(self._bias_rows(self._parts[part]), self._shard(tensor, part))

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, in_features] to this rank's [num_tokens, out_features]."""
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
            out_features=out_features,
            bias=bias,
            placement=placement,
        )
        self._all = _Part(0, out_features)

    def load_weight(self, tensor: Tensor) -> None:
        copy_checked(self._weight_rows(self._all), self._group.shard(tensor, 1))

    def load_bias(self, tensor: Tensor) -> None:
        """Only rank 0 adds the bias; the others hold zeros, as the ranks' results are summed."""
        rows = self._bias_rows(self._all)
        copy_checked(rows, tensor)
        if self._group.rank:
            rows.zero_()

    def __call__(self, x: Tensor) -> Tensor:
        """This rank's [num_tokens, in_features] to the whole [num_tokens, out_features]."""
        return self._group.all_reduce(self._apply(x))

    def partial(self, x: Tensor) -> Tensor:
        """Likewise, but the ranks' results are still to be summed."""
        return self._apply(x)

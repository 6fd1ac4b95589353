"""Linear layers, packed (Q, K and V in one matrix, gate and up in one) and tensor-parallel.

A layer holds its matrix in a format, which takes what the checkpoint has of each part: one tensor
of a plain matrix, several of a quantised one. It is filled part by part, then `finish` hands the
matrix to the device's own layout. Until then the layer cannot be called.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate

import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.torch.rounding import rounded
from signalbox_worker.device.parallel_group import ParallelGroup
from signalbox_worker.files.checkpoints.weight_names import check_shape
from signalbox_worker.files.quantised.form import WEIGHT
from signalbox_worker.models.layers.adapters import BatchAdapters, LayerAdapter
from signalbox_worker.models.layers.matrices import (
    Matrix,
    MatrixFormat,
    MatrixPart,
    PlainMatrix,
    shape_of,
)
from signalbox_worker.models.layers.norm import RMSNorm
from signalbox_worker.models.layers.weight_placement import Placement, WeightTarget, copy_checked

_ALL = "all"


class Linear:
    """A matrix [out_features, in_features] of this shard, and perhaps a bias, in named parts."""

    def __init__(
        self,
        parts: Mapping[str, MatrixPart],
        *,
        bias: bool,
        placement: Placement,
        is_plain: bool = False,
        plain_format: MatrixFormat = PlainMatrix,
    ) -> None:
        """Makes the layer without its matrix.

        Args:
            is_plain: keeps the matrix in the model's dtype, whatever others are held in.
            plain_format: format of a plain matrix.
        """
        self._parts, self._placement = parts, placement
        out_features, _ = shape_of([*parts.values()])
        self._bias = placement.empty(out_features) if bias else None
        self._format = self._plain_format = plain_format
        self._is_plain = is_plain
        self._roundings: dict[str, Rounding] = {}
        self.can_round_inputs = True
        """True if `round_inputs` has an effect."""
        self._adapters: dict[int, list[LayerAdapter]] = {}

    @property
    def is_quantised(self) -> bool:
        return self._format is not self._plain_format

    def can_hold(self, matrix_format: MatrixFormat) -> bool:
        """Returns whether the matrix may be held in another format than the plain one."""
        return not self._is_plain

    def hold_as(self, matrix_format: MatrixFormat) -> None:
        """Chooses a format that it can hold, before anything is loaded."""
        assert "_matrix" not in vars(self) and self.can_hold(matrix_format)
        self._format = matrix_format

    def round_inputs(self, roundings: Mapping[str, Rounding]) -> None:
        """Makes products with some parts round their inputs, as a checkpoint prescribes."""
        self._roundings = dict(roundings)

    def finish(self) -> None:
        """Packs the matrix, after all of it is loaded."""
        self._matrix.finish()

    def load_part(self, tensors: Mapping[str, Tensor], part: str) -> None:
        """Takes the checkpoint's whole tensors of `part`, by the ends of their names."""
        self._matrix.load(tensors, self._parts[part])

    @cached_property  # once the format is known
    def _matrix(self) -> Matrix:
        return self._format([*self._parts.values()], self._placement)

    def _load_bias(self, tensor: Tensor, part: str) -> Tensor:
        """Returns the rows of the bias that it filled."""
        assert self._bias is not None
        taken = self._parts[part]
        rows = self._bias.narrow(0, taken.start, taken.num_rows)
        copy_checked(rows, tensor[taken.rows])
        return rows

    def whole_shape(self, part: str) -> tuple[int, int]:
        """Returns the rows and columns of the checkpoint's matrix of a part."""
        return self._parts[part].whole

    def cut_adapter(self, part: str, a: Tensor, b: Tensor) -> LayerAdapter:
        """Returns this shard of what an adapter adds to a part; on any thread.

        Args:
            a, b: [r, in_features] and [out_features, r], with the scale in `b`.
        """
        taken, kind = self._parts[part], self._placement
        # Copies: a view would keep the whole matrices in memory.
        return LayerAdapter(
            a[:, taken.columns].to(kind.device, kind.dtype, copy=True),
            b[taken.rows].to(kind.device, kind.dtype, copy=True),
            taken.start,
        )

    def adapter_bytes(self, part: str, r: int) -> int:
        """Returns the bytes of such a share."""
        rows, columns = shape_of([self._parts[part]])
        return r * (rows + columns) * self._placement.dtype.itemsize

    def add_adapter(self, slot: int, adapter: LayerAdapter) -> None:
        self._adapters.setdefault(slot, []).append(adapter)

    def remove_adapters(self, slot: int) -> None:
        """Removes what the layer has in a slot."""
        self._adapters.pop(slot, None)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of this shard."""
        return shape_of([*self._parts.values()])

    @property
    def has_bias(self) -> bool:
        return self._bias is not None

    @property
    def _plain_weight(self) -> Tensor:
        """The matrix itself, of a layer that holds it as the checkpoint does."""
        assert isinstance(self._matrix, PlainMatrix)
        return self._matrix.weight

    def _apply(self, x: Tensor, adapters: BatchAdapters = ()) -> Tensor:
        product = partial(self._matrix.apply, bias=self._bias)
        out = self._rounded_product(product, x, self._parts)
        for number, rows in adapters:
            for adapter in self._adapters.get(number, ()):
                adapter.add(x, out, rows)
        return out

    def _rounded_product(
        self, product: Callable[[Tensor], Tensor], x: Tensor, parts: Iterable[str]
    ) -> Tensor:
        """Returns the product of x with parts that lie below each other, which may round it.

        Parts that round it differently take their columns of different products.
        """
        if not self._roundings:
            return product(x)
        roundings = {name: self._roundings.get(name) for name in parts}
        products = {
            how: product(x if how is None else rounded(x, how))
            for how in dict.fromkeys(roundings.values())
        }
        if len(products) == 1:
            return products.popitem()[1]
        sizes = [self._parts[name].num_rows for name in roundings]
        columns = {how: torch.split(one, sizes, dim=1) for how, one in products.items()}
        taken = [columns[how][number] for number, how in enumerate(roundings.values())]
        return torch.cat(taken, dim=1)


@dataclass(frozen=True, slots=True)
class MatrixTarget:
    """The place of a part's matrix, plain or quantised. Satisfies `WeightTarget`."""

    layer: Linear
    part: str

    def __call__(self, tensor: Tensor) -> None:
        self.layer.load_part({WEIGHT: tensor}, self.part)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.layer.load_part(tensors, self.part)


@dataclass(frozen=True, slots=True)
class FusedTarget:
    """The place of a checkpoint's matrix that has several parts below each other. Satisfies
    `WeightTarget`."""

    parts: Sequence[MatrixTarget]

    @property
    def rows(self) -> list[slice]:
        """Rows of each part in the checkpoint's matrix."""
        ends = list(accumulate(one.layer.whole_shape(one.part)[0] for one in self.parts))
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def __call__(self, tensor: Tensor) -> None:
        """Raises ModelError for a tensor of other rows."""
        check_shape("a fused matrix", tuple(tensor.shape), (self.rows[-1].stop, *tensor.shape[1:]))
        for target, rows in zip(self.parts, self.rows, strict=True):
            target(tensor[rows])


class _ColumnParallelLinear(Linear):
    """Output rows divided among shards."""

    def load_weight(self, tensor: Tensor, part: str) -> None:
        """Takes the checkpoint's whole matrix of `part`."""
        self.load_part({WEIGHT: tensor}, part)

    def load_bias(self, tensor: Tensor, part: str) -> None:
        self._load_bias(tensor, part)

    def weight_targets(self, **names: str) -> dict[str, WeightTarget]:
        """Args: names: name of each part in the checkpoint, without `.weight` or `.bias`."""
        targets: dict[str, WeightTarget] = {}
        for part, name in names.items():
            targets[f"{name}.weight"] = MatrixTarget(self, part)
            if self._bias is not None:
                targets[f"{name}.bias"] = partial(self.load_bias, part=part)
        return targets

    def __call__(self, x: Tensor, adapters: BatchAdapters = ()) -> Tensor:
        """Returns this shard's [num_tokens, out_features] for [num_tokens, in_features]."""
        return self._apply(x, adapters)

    def after_norm(self, x: Tensor, norm: RMSNorm, *, is_gated: bool = False) -> Tensor:
        """Returns the product of few rows, with a plain matrix, that are normed first.

        Args:
            is_gated: applies silu_and_mul to the product, of two parts.
        """
        return ops.rms_norm_linear(
            x, norm.weight, self._plain_weight, self._bias, eps=norm.eps, is_gated=is_gated
        )


def _rows_in_order(
    sizes: Mapping[str, int], first: Mapping[str, int], whole: Mapping[str, int], in_features: int
) -> dict[str, MatrixPart]:
    """Places parts one below the other.

    Args:
        sizes, first: rows of each part that this shard takes, and the first of them.
        whole: rows of the checkpoint's matrix.
    """
    parts, start = dict[str, MatrixPart](), 0
    for name, size in sizes.items():
        rows = slice(first[name], first[name] + size)
        parts[name] = MatrixPart(start, rows, slice(0, in_features), (whole[name], in_features))
        start += size
    return parts


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
        is_plain: bool = False,
    ) -> None:
        sizes = {name: group.divide(size, name) for name, size in out_features.items()}
        first = {name: group.own(size).start for name, size in sizes.items()}
        parts = _rows_in_order(sizes, first, out_features, in_features)
        super().__init__(parts, bias=bias, placement=placement, is_plain=is_plain)


class QKVParallelLinear(_ColumnParallelLinear):
    """Q, K and V as one product. K and V heads are repeated where there are fewer than shards."""

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
        kv_heads = group.own_kv_heads(num_kv_heads)
        self.num_kv_heads = len(kv_heads)
        heads = {"q": self.num_heads, "k": self.num_kv_heads, "v": self.num_kv_heads}
        sizes = {name: count * head_size for name, count in heads.items()}
        first_q = group.own(self.num_heads).start
        first_head = {"q": first_q, "k": kv_heads.start, "v": kv_heads.start}
        first = {name: head * head_size for name, head in first_head.items()}
        all_heads = {"q": num_heads, "k": num_kv_heads, "v": num_kv_heads}
        whole = {name: count * head_size for name, count in all_heads.items()}
        parts = _rows_in_order(sizes, first, whole, hidden_size)
        super().__init__(parts, bias=bias, placement=placement)


class RowParallelLinear(Linear):
    """Input columns divided among shards; the results are summed."""

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
        size = group.divide(in_features, "row-parallel input size")
        columns = group.own(size)
        part = MatrixPart(0, slice(0, out_features), columns, (out_features, in_features))
        super().__init__({_ALL: part}, bias=bias, placement=placement)

    def load_weight(self, tensor: Tensor) -> None:
        """Takes the checkpoint's whole matrix."""
        self.load_part({WEIGHT: tensor}, _ALL)

    def load_bias(self, tensor: Tensor) -> None:
        """Loads the bias on the first shard and zeros elsewhere, because results are summed."""
        rows = self._load_bias(tensor, _ALL)
        if not self._group.is_first:
            rows.zero_()

    def weight_targets(self, name: str) -> dict[str, WeightTarget]:
        """Args: name: the checkpoint's name, without `.weight` or `.bias`."""
        targets: dict[str, WeightTarget] = {f"{name}.weight": MatrixTarget(self, _ALL)}
        if self._bias is not None:
            targets[f"{name}.bias"] = self.load_bias
        return targets

    def __call__(self, x: Tensor, adapters: BatchAdapters = ()) -> Tensor:
        """Returns [num_tokens, out_features] of this shard's [num_tokens, in_features]."""
        return self._group.all_reduce(self._apply(x, adapters))

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """Adds the product of few rows with a plain matrix to `residual`, in a group of one."""
        ops.linear_add(x, self._plain_weight, self._bias, residual)

"""Matrices of 4-bit codes in groups along the sum, in one layout for all packings."""

from collections.abc import Mapping, Sequence
from math import gcd

import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch.int4 import (
    COUNTED,
    RUN,
    Int4Weight,
    pack_groups,
    pack_words,
    usable_group_size,
)
from signalbox_worker.config import ModelError
from signalbox_worker.device.division import undivided
from signalbox_worker.files.quantised.codes import ArrayLibrary, IntegerCodes
from signalbox_worker.files.quantised.form import QuantisedForm
from signalbox_worker.models.layers.matrices import MatrixPart, shape_of
from signalbox_worker.models.layers.weight_placement import Placement, checked_shape

TORCH = ArrayLibrary(
    lambda words: words.flatten().view(torch.uint8),
    torch.stack,
    lambda array, value: torch.full_like(array, value, dtype=torch.uint8),
)
_TYPICAL_GROUP = float(
    pack_groups(torch.tensor([5e-3], dtype=torch.float16), torch.tensor([8])).view(torch.float32)
)
"""Makes made-up codes weights of a usual size: a scale, with the zero point 8 in its last bits."""


class Int4Matrix:
    """Codes, scales and zero points. Satisfies `Matrix`.

    Columns that a checkpoint has in the order of their groups alone by an index are put in that
    order, and the activations' columns likewise in each product.
    """

    def __init__(
        self, parts: Sequence[MatrixPart], placement: Placement, *, form: QuantisedForm
    ) -> None:
        out_features, in_features = shape_of(parts)
        assert form.unpack is not None
        self._unpack, self._dtype = form.unpack, placement.dtype
        self._group_size = form.group_size or parts[0].whole[1]
        self._is_share = in_features < parts[0].whole[1]
        size = self._size_of_groups(in_features)
        num_words = -(-in_features // RUN) * RUN // 8
        self._weight = Int4Weight(
            placement.empty(out_features, num_words, dtype=torch.int32),
            placement.empty(
                -(-num_words * 8 // size), out_features, around=_TYPICAL_GROUP, dtype=torch.float32
            ).view(torch.int32),
            size,
            in_features,
            torch.zeros(-(-out_features // COUNTED), dtype=torch.int32, device=placement.device),
        )
        self._order: Tensor | None = None
        self._is_begun = False

    def _size_of_groups(self, in_features: int) -> int:
        """A share of the columns may start within a group, so that it has smaller ones."""
        size = gcd(self._group_size, in_features) if self._is_share else self._group_size
        usable = usable_group_size(size, in_features)
        if usable is None:
            raise undivided(
                f"a matrix of 4-bit codes has groups of {self._group_size}, and {in_features} "
                "columns for each shard",
                otherwise=", or --quantization none",
            )
        return usable

    def load(self, tensors: Mapping[str, Tensor], part: MatrixPart) -> None:
        device = self._weight.words.device
        on_device = {end: tensor.to(device) for end, tensor in tensors.items()}
        matrix = self._unpack(on_device, TORCH)
        codes = checked_shape(matrix.codes, part.whole)
        order = self._order_of(matrix)
        if self._is_begun and not _are_equal(order, self._order):
            raise ModelError(
                "matrices of one layer have their columns in different orders; use --quantization "
                "none"
            )
        self._order, self._is_begun = order, True
        codes = codes[part.rows, part.columns]
        codes = codes if order is None else codes[:, order]
        rows = slice(part.start, part.start + part.num_rows)
        self._weight.words[rows] = pack_words(codes)
        self._weight.groups[:, rows] = self._groups_of(matrix, part)

    def _groups_of(self, matrix: IntegerCodes, part: MatrixPart) -> Tensor:
        """Returns the groups of this shard; those past its columns are any."""
        num_groups = len(self._weight.groups)
        first = part.columns.start + torch.arange(num_groups) * self._weight.group_size
        index = (first // self._group_size).clamp(max=len(matrix.scales) - 1)
        scales = matrix.scales
        if scales.dtype not in (torch.float16, torch.bfloat16):
            scales = scales.to(torch.float16 if self._dtype is torch.float32 else self._dtype)
        index = index.to(scales.device)
        return pack_groups(scales[index][:, part.rows], matrix.zeros[index][:, part.rows])

    def _order_of(self, matrix: IntegerCodes) -> Tensor | None:
        """Returns the columns in the order of their groups; None if they are in it."""
        if matrix.group_index is None:
            return None
        index: Tensor = matrix.group_index.long()
        in_order = torch.arange(len(index), device=index.device) // self._group_size
        if torch.equal(index, in_order):
            return None
        order = index.argsort(stable=True)
        if not torch.equal(index[order], in_order):
            raise ModelError(
                f"a matrix of 4-bit codes has groups that are not of {self._group_size} columns; "
                "use --quantization none"
            )
        if self._is_share:
            raise undivided(
                "columns that are quantised in another order (desc_act) are not divided",
                otherwise=", or --quantization none",
            )
        return order

    def finish(self) -> None:
        """All is packed part by part."""

    def apply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._order is not None:
            x = x.index_select(-1, self._order)
        return ops.w4a16_linear(x, self._weight, bias)


def _are_equal(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)

"""Matrices in FP8 (E4M3), multiplied with activations that are rounded to E4M3, too."""

from collections.abc import Mapping, Sequence
from math import gcd

import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_worker.device.division import undivided
from signalbox_worker.files.quantised.form import WEIGHT
from signalbox_worker.files.quantised.scaled import BLOCK, BLOCK_SCALE, SCALE
from signalbox_worker.models.layers.matrices import MatrixPart, shape_of
from signalbox_worker.models.layers.weight_placement import Placement, checked_shape

_TYPICAL_SCALE = 2e-4
"""Makes made-up codes weights of a usual size."""


class HeldFp8:
    """Codes, and scales in float32 for groups of rows and columns. Satisfies `Matrix`."""

    def __init__(
        self,
        parts: Sequence[MatrixPart],
        placement: Placement,
        *,
        rows_per_scale: int,
        num_groups: int,
        x_scale: float | None = None,
    ) -> None:
        """Makes it without codes.

        Args:
            num_groups: groups of columns with scales of their own.
            x_scale: a static scale of activations; None has one for each token and group.
        """
        out_features, in_features = shape_of(parts)
        self._x_scale = x_scale
        self.rows_per_scale = rows_per_scale
        self.codes = placement.empty(out_features, in_features, dtype=torch.float8_e4m3fn)
        num_scales = -(-out_features // rows_per_scale)
        self.scales = placement.empty(
            num_scales, num_groups, around=_TYPICAL_SCALE, dtype=torch.float32
        )

    def _load_codes(self, codes: Tensor, part: MatrixPart) -> None:
        checked_shape(codes, part.whole)
        rows = self.codes.narrow(0, part.start, part.num_rows)
        rows.copy_(codes[part.rows, part.columns])

    def finish(self) -> None:
        """Nothing is packed: the kernel reads rows as they lie in the checkpoint."""

    def apply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rows, x_scale = self.rows_per_scale, self._x_scale
        return ops.fp8_linear(
            x, self.codes, self.scales, bias, rows_per_scale=rows, x_scale=x_scale
        )


class Fp8Matrix(HeldFp8):
    """A scale for each row: the parts' own, or that of a whole part repeated, which is exact."""

    def __init__(
        self, parts: Sequence[MatrixPart], placement: Placement, *, x_scale: float | None = None
    ) -> None:
        super().__init__(parts, placement, rows_per_scale=1, num_groups=1, x_scale=x_scale)

    def load(self, tensors: Mapping[str, Tensor], part: MatrixPart) -> None:
        codes = tensors[WEIGHT]
        if SCALE in tensors:
            scale = tensors[SCALE].float().reshape(-1, 1)
        else:  # of the whole matrix, so that all shards are of the same one
            codes, scale = ops.quantize_fp8(codes.to(self.codes.device).float())
        self._load_codes(codes, part)
        of_rows = scale.expand(part.whole[0], 1)[part.rows]
        self.scales.narrow(0, part.start, part.num_rows).copy_(of_rows)


class Fp8BlockMatrix(HeldFp8):
    """A scale for each block of 128 x 128 of the checkpoint's matrix.

    Where a part does not start with a block of its own, rows that share a scale are fewer.
    """

    def __init__(self, parts: Sequence[MatrixPart], placement: Placement) -> None:
        if any(part.columns.start % BLOCK for part in parts):
            raise undivided(
                f"a matrix in FP8 by blocks of {BLOCK} has {parts[0].num_columns} columns for each "
                "shard",
                otherwise=", or --quantization none",
            )
        starts = (start for part in parts for start in (part.start, part.rows.start))
        num_groups = -(-parts[0].num_columns // BLOCK)
        super().__init__(
            parts, placement, rows_per_scale=gcd(BLOCK, *starts), num_groups=num_groups
        )

    def load(self, tensors: Mapping[str, Tensor], part: MatrixPart) -> None:
        self._load_codes(tensors[WEIGHT], part)
        step = self.rows_per_scale
        blocks = torch.arange(part.rows.start, part.rows.stop, step) // BLOCK
        first = part.columns.start // BLOCK
        num_groups = self.scales.shape[1]
        scales = tensors[BLOCK_SCALE].float()[blocks, first : first + num_groups]
        self.scales.narrow(0, part.start // step, len(blocks)).copy_(scales)

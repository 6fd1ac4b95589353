"""Hidden states of a decoder, with the ops by which the parts of a layer read them and add to them.

A part reads rows that a norm makes of them. The product at its end adds to them, or a norm of that
product does.
"""

from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from signalbox_kernels.adapters import AdapterSite
from signalbox_kernels.floats import AnyArray
from signalbox_kernels.op_parameters import Adapted, Norm
from signalbox_kernels.program_builder import ProgramBuilder
from signalbox_kernels.storage import Matrix
from signalbox_kernels.structs import UNIT_COLUMNS, Epilogue, Row
from signalbox_worker.runner.native.matrices import joined
from signalbox_worker.runner.native.product_rows import ProductRows
from signalbox_worker.runner.native.program_parts import RESIDUAL
from signalbox_worker.runner.native.weight_shapes import LAYER_SCALE, layer_prefix
from signalbox_worker.runner.native.weights import Weights


class Modules(NamedTuple):
    """Matrices that read the same rows, as few as possible."""

    matrices: list[Matrix]
    rows: dict[str, int]
    """Rows of each module, by its name."""
    bias: AnyArray | None
    """Biases of all matrices, one behind the other."""


class HiddenStates:
    """The residual, what layers read of it, and the buffers and ops that their parts share."""

    def __init__(
        self,
        builder: ProgramBuilder,
        weights: Weights,
        *,
        factors: Row,
        max_lora_rank: int,
        is_divided: bool,
    ) -> None:
        """Args: is_divided: sums what ranks add to the hidden states."""
        config = weights.share.config
        self.builder, self.weights, self.config = builder, weights, config
        self._factors = factors
        residual = builder.buffer(config.hidden_size, row=Row.FLOATS)
        assert residual == RESIDUAL
        self.part = builder.buffer(config.hidden_size, row=Row.SHARED) if is_divided else RESIDUAL
        """Buffer of what a rank adds to the hidden states."""
        self.normed = ProductRows(builder, config.hidden_size, factors=factors)
        # Of Q, K, V and gates together, each padded to an even r.
        self._shrunk = builder.buffer(4 * (max_lora_rank + 1)) if max_lora_rank else None
        self._rows: dict[tuple[str, int], ProductRows] = {}

    @cached_property
    def result(self) -> int:
        """Buffer of what a part of a layer adds to the residual, before its norm."""
        return self.builder.buffer(self.config.hidden_size, row=Row.FLOATS)

    def rows(self, kind: str, width: int, *, copies: int = 0) -> ProductRows:
        """Returns the rows of a kind that layers of a width share."""
        if (kind, width) not in self._rows:
            rows = ProductRows(self.builder, width, factors=self._factors, copies=copies)
            self._rows[kind, width] = rows
        return self._rows[kind, width]

    def modules(self, names: list[str], *, in_units: bool = False) -> Modules:
        """Returns the weights of modules.

        Args:
            in_units: joins matrices behind whole units alone if adapters may be set, whose sites
                are divided by them.
        """
        parts = [self.weights.matrix(f"{name}.weight") for name in names]
        rows = dict(zip(names, (part.shape[0] for part in parts), strict=True))
        found = [self.weights.vector_if_any(f"{name}.bias") for name in names]
        biases = [bias for bias in found if bias is not None]
        runs: list[list[Matrix]] = [[]]
        for part in parts:
            runs[-1].append(part)
            if in_units and self._shrunk is not None and part.shape[0] % UNIT_COLUMNS:
                runs.append([])
        matrices = [matrix for run in runs for matrix in joined(run)]
        return Modules(matrices, rows, np.concatenate(biases) if biases else None)

    def layer_scale(self, index: int) -> float:
        """Returns the factor of the hidden states behind a layer."""
        scale = self.weights.vector_if_any(f"{layer_prefix(index)}{LAYER_SCALE}")
        return 1.0 if scale is None else float(scale[0])

    def norm(self, name: str, *, divisor: float = 1.0) -> Norm:
        """Returns a norm whose result is divided."""
        bias = self.weights.vector_if_any(f"{name}.bias")
        return Norm(
            weight=self.weights.norm(f"{name}.weight") / np.float32(divisor),
            bias=None if bias is None else bias / np.float32(divisor),
            eps=self.config.rms_norm_eps,
            is_centred=self.config.norm_is_centred,
        )

    def add_norm(self, name: str, readers: list[Matrix]) -> None:
        """Adds rows for products with some matrices: normed, or as they are if layers norm none."""
        write = self.builder.code
        if self.config.has_input_norms:
            write = partial(self.builder.norm, norm=self.norm(name))
        outs = self.normed.begin(readers)
        for out, rounding in outs:
            write(RESIDUAL, out, rounding=rounding)
        elements = self.normed.elements
        if self._shrunk is not None and all(out != elements for out, _ in outs):
            write(RESIDUAL, elements, for_adapters=True)

    def add_copy(self, readers: list[Matrix]) -> None:
        """Adds rows for products with some matrices: the residual as it is."""
        ones = np.ones(self.config.hidden_size, dtype=np.float32)
        copy = Norm(weight=ones, eps=0.0, is_normed=False)
        for out, rounding in self.normed.begin(readers):
            self.builder.norm(RESIDUAL, out, copy, rounding=rounding)

    def add_stored(
        self,
        dst: int,
        matrix: Matrix,
        bias: AnyArray | None,
        rows: dict[str, int],
        *,
        column: int = 0,
    ) -> None:
        """Adds a product of the normed rows.

        Args:
            rows: of modules, of which the matrix has the first; these are taken out.
        """
        source = self.normed.read(matrix)
        adapted = self.adapted(self.normed, _taken(rows, matrix.shape[0]))
        self.builder.linear(
            source, dst, matrix, bias, Epilogue.STORE, column=column, adapted=adapted
        )

    def add_down(
        self, rows: ProductRows, name: str, inner_norm: str, index: int, *, scale: float = 1.0
    ) -> None:
        """Adds a product whose result, summed over the group and perhaps normed, is added to the
        residual.

        Args:
            scale: factor of the sum behind a norm.
        """
        matrix = self.weights.matrix(f"{name}.weight")
        source = rows.read_elements(matrix)
        bias = self.weights.vector_if_any(f"{name}.bias")
        adapted = self.adapted(rows, {name: matrix.shape[0]})
        is_normed = self.config.has_inner_norms
        out = self.result if is_normed else RESIDUAL
        dst = out if self.part == RESIDUAL else self.part
        epilogue = Epilogue.ADD if dst == RESIDUAL else Epilogue.STORE
        self.builder.linear(source, dst, matrix, bias, epilogue, adapted=adapted)
        self.add_sum(out, adds=not is_normed)
        if is_normed:
            norm = self.norm(f"{layer_prefix(index)}{inner_norm}")
            self.builder.norm(out, RESIDUAL, norm, sum_scale=scale)

    def add_sum(self, dst: int = RESIDUAL, *, adds: bool) -> None:
        """Adds the sum of what ranks have, if there are several.

        Args:
            adds: adds it to what is in `dst`.
        """
        if self.part != RESIDUAL:
            self.builder.sum(self.part, dst, adds=adds)

    def adapted(
        self, rows: ProductRows, num_rows: dict[str, int], *, is_interleaved: bool = False
    ) -> Adapted | None:
        """Returns what adapters may add to a product; None if none will be set.

        Args:
            num_rows: rows of each matrix that is multiplied, by the name of its module.
        """
        if self._shrunk is None:
            return None
        site = AdapterSite(tuple(num_rows), tuple(num_rows.values()), rows.width, is_interleaved)
        return Adapted(site, rows.elements, self._shrunk)


def _taken(rows: dict[str, int], num_rows: int) -> dict[str, int]:
    """Takes the first matrices, which have `num_rows` rows together, out of `rows`."""
    taken = dict[str, int]()
    while sum(taken.values()) < num_rows:
        name = next(iter(rows))
        taken[name] = rows.pop(name)
    return taken

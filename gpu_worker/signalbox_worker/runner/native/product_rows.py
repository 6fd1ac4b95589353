"""Rows that products of a native program read, in the forms that their matrices ask for.

A matrix of floats multiplies elements, one of blocks codes of 8 or 16 bits, or elements too. A
checkpoint may also prescribe that rows are rounded, and have the columns of a matrix in another
order.
"""

from signalbox_kernels.program_builder import ProgramBuilder
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.storage import Matrix, stored
from signalbox_kernels.structs import Row


class ProductRows:
    """Buffers of rows of one width; a layer's rows replace those of the layer before."""

    def __init__(
        self, builder: ProgramBuilder, width: int, *, factors: Row, copies: int = 0
    ) -> None:
        """Args: copies: as `ProgramBuilder.buffer` takes it."""
        self._builder, self.width, self._factors = builder, width, factors
        self._copies = copies
        self._buffers: dict[Row, list[int]] = {row: [] for row in Row}
        self._of_orders: dict[Row, int] = {}
        self._used: dict[tuple[Row, Rounding | None], int] = {}
        self.elements = self._buffer(Row.ELEMENTS, 0)
        """Buffer of the rows as they are, which adapters read, too."""

    def begin(self, readers: list[Matrix]) -> list[tuple[int, Rounding | None]]:
        """Frees all buffers; returns those that new rows have to be written to for products with
        some matrices, each with the rounding of what is written."""
        self._used = {(Row.ELEMENTS, None): self.elements}
        wanted = {self._written(matrix) for matrix in readers}
        return [(out, rounding) for (_, rounding), out in self._used.items() if out in wanted]

    def read(self, matrix: Matrix) -> int:
        """Returns the buffer that a product with a matrix reads; rows that need another order of
        columns are put into it."""
        order = stored(matrix).order
        if order is None:
            return self._written(matrix)
        row, rounding = self._form(matrix)
        out = self._ordered(row)
        self._builder.code(self.elements, out, order, rounding)
        return out

    def read_elements(self, matrix: Matrix) -> int:
        """Does the same with new rows, of which only the elements are written."""
        self.begin([])
        out = self.read(matrix)
        if stored(matrix).order is None and out != self.elements:
            self._builder.code(self.elements, out, rounding=stored(matrix).rounding)
        return out

    def _written(self, matrix: Matrix) -> int:
        if stored(matrix).order is not None:
            return self.elements
        row, rounding = self._form(matrix)
        if (row, rounding) not in self._used:
            number = sum(used is row for used, _ in self._used)
            self._used[row, rounding] = self._buffer(row, number)
        return self._used[row, rounding]

    def _form(self, matrix: Matrix) -> tuple[Row, Rounding | None]:
        rounding, is_quantised = stored(matrix).rounding, stored(matrix).type.is_quantised
        row = self._factors
        if rounding is not None:
            row = Row.CODES if rounding.is_scaled_codes else Row.ELEMENTS
        return row if is_quantised else Row.ELEMENTS, rounding

    def _buffer(self, row: Row, number: int) -> int:
        buffers = self._buffers[row]
        if number == len(buffers):
            buffers.append(self._builder.buffer(self.width, row=row, copies=self._copies))
        return buffers[number]

    def _ordered(self, row: Row) -> int:
        if row not in self._of_orders:
            self._of_orders[row] = self._builder.buffer(self.width, row=row, copies=self._copies)
        return self._of_orders[row]

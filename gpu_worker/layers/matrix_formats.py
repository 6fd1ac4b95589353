"""Which format holds the matrices of each quantised form."""

from functools import cache, partial

from gpu_worker.layers.fp8 import Fp8BlockMatrix, Fp8Matrix
from gpu_worker.layers.int4 import Int4Matrix
from gpu_worker.layers.matrices import MatrixFormat
from gpu_worker.quantised.configuration import FP8, FP8_BLOCKS
from gpu_worker.quantised.form import QuantisedForm


@cache
def matrix_format(form: QuantisedForm) -> MatrixFormat | None:
    """Returns what makes the matrices of layers; None if they are decoded."""
    if form.unpack is not None and form.bits == 4:
        return partial(Int4Matrix, form=form)
    if form == FP8:
        return Fp8Matrix
    return Fp8BlockMatrix if form == FP8_BLOCKS else None

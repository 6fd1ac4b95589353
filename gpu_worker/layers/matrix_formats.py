"""Which format holds the matrices of each quantised form."""

from functools import partial

from gpu_worker.checkpoints.quantised_forms import QuantisedForm
from gpu_worker.layers.fp8 import Fp8BlockMatrix, Fp8Matrix
from gpu_worker.layers.int4 import Int4Matrix
from gpu_worker.layers.matrices import MatrixFormat


def matrix_format(form: QuantisedForm) -> MatrixFormat:
    """Returns what makes the matrices of layers."""
    if form.unpack is not None:
        return partial(Int4Matrix, form=form)
    return Fp8Matrix if form.group_size is None else Fp8BlockMatrix

"""Which format holds the matrices of each quantised form."""

from functools import cache, partial

from signalbox_kernels.rounding import Rounding
from signalbox_kernels.structs import Element
from signalbox_worker.files.quantised.configuration import FP8, FP8_BLOCKS
from signalbox_worker.files.quantised.form import QuantisedForm
from signalbox_worker.files.quantised.scaled import BLOCK
from signalbox_worker.models.layers.fp8 import Fp8BlockMatrix, Fp8Matrix
from signalbox_worker.models.layers.int4 import Int4Matrix
from signalbox_worker.models.layers.matrices import MatrixFormat

_OF_TOKENS = Rounding(code=Element.FP8_E4M3)
_OF_GROUPS = Rounding(code=Element.FP8_E4M3, group_size=BLOCK)


@cache
def matrix_format(form: QuantisedForm, rounding: Rounding | None = None) -> MatrixFormat | None:
    """Returns what makes the matrices of layers; None if they are decoded.

    Args:
        rounding: what the checkpoint prescribes for their inputs; None prescribes nothing.
    """
    if form.unpack is not None and form.bits == 4:
        return partial(Int4Matrix, form=form)
    if form == FP8_BLOCKS:
        return Fp8BlockMatrix if rounding in (None, _OF_GROUPS) else None
    if form != FP8:
        return None
    if rounding is None or rounding.scale is None:
        return Fp8Matrix if rounding in (None, _OF_TOKENS) else None
    is_e4m3 = rounding.code is Element.FP8_E4M3
    return partial(Fp8Matrix, x_scale=rounding.scale) if is_e4m3 else None


def kernel_rounds_inputs(form: QuantisedForm) -> bool:
    """Says whether the products of a layer that holds a form round its inputs by themselves."""
    return form in (FP8, FP8_BLOCKS)

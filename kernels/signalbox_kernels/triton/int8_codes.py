"""Codes of heads in int8, each with 1/127 of its largest magnitude as its scale.

`torch.kv_cache.to_int8` is what they equal, bit for bit.
"""

import triton
import triton.language as tl


@triton.jit
def magnitudes(values):
    """Returns those of elements, infinity of a NaN, so that a maximum shows either."""
    size = tl.abs(values.to(tl.float32))
    return tl.where(size < float("inf"), size, float("inf"))


@triton.jit
def inverse_and_scales(sizes):
    """Returns what each row of magnitudes is multiplied with to be codes, and its scale."""
    top = tl.max(sizes, axis=1)
    is_finite = top < float("inf")
    is_coded = is_finite & (top > 2.0**-120)  # a smaller one's inverse would overflow
    inverse = tl.where(is_coded, tl.div_rn(127.0, tl.where(is_coded, top, 1.0)), 0.0)
    return inverse, tl.where(is_finite, top * (1.0 / 127.0), float("nan"))


@triton.jit
def to_codes(values, inverse):
    """Returns [rows, n] int8, rounded to nearest, ties to even; 0 where the scale is NaN."""
    magic = 12582912.0  # 1.5 * 2^23: adding it rounds to a whole number
    finite = tl.where(magnitudes(values) < float("inf"), values.to(tl.float32), 0.0)
    return ((finite * inverse[:, None] + magic) - magic).to(tl.int8)

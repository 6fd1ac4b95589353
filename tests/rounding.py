"""Bounds on rounding, for tests that compare floats which two programs compute in different orders.

The standard model: an operation rounds its exact result by a relative error of at most u. A sum of
n terms in any order makes n - 1 such errors, a scalar product of length n makes n (fewer with fused
multiply-add), so its error is at most gamma(n) times the sum of the terms' magnitudes, where
gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). The bound
knows no processor: not the width of its vectors, nor whether it fuses.
"""

UNIT_ROUNDOFF = 2.0**-24
"""Of float32, rounding to nearest."""


def relative_error(num_roundings: int, *, u: float = UNIT_ROUNDOFF) -> float:
    """Returns gamma(num_roundings): the largest relative error after that many roundings."""
    return num_roundings * u / (1 - num_roundings * u)


LOGITS = 1e-4
"""Largest difference of a logit, or of a log probability, of `tests.gpu_worker.tiny_models`.

To first order: a logit passes 7 products in each of 3 layers and the head's, 22 sums of at most
80 terms, whose magnitudes add up to about 6 (48 entries of 0.8 times weights of 0.16). Norms bring
what a product reads back to magnitude 1, so errors of sums add up rather than multiply. Were all
roundings in one direction that came to 22 gamma(80) 6 = 6e-4; but they are in both, and grow as the
root of their number (Higham and Mary, 2019): 22 sqrt(80) u 6 = 7e-5, in the worst of directions.
"""

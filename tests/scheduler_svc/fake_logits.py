"""Logits of the fake worker: made up of all that it has read before a draw, and of the token."""

import math
from collections.abc import Sequence

import numpy as np

from signalbox_contract.columns import Column, float32s

ARITHMETIC = "a5" * 32


def made_up_logit(context: Sequence[int], token_id: int) -> float:
    """Returns a float32 that differs with each token of the context."""
    value = 0
    for one in (*context, token_id):
        value = (value * 1_000_003 + one + 1) & 0xFFFFFF
    return value / 997


def draw_logits(logits: Sequence[float]) -> Column | None:
    """Returns the column of a result; None if no sequence of the step returns logits."""
    if all(map(math.isnan, logits)):
        return None
    return float32s(np.array(logits, dtype=np.float32))

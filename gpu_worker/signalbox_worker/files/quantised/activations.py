"""Reads how a checkpoint prescribes activations to be rounded to codes of 8 bits.

The scales are dynamic, of a token or a group of its columns, or static, beside the matrix. With a
scheme that no program computes, such as one dynamic scale for a whole batch, activations stay in
floats.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.storage import GROUP
from signalbox_kernels.structs import Element
from signalbox_worker.files.quantised.fields import MAX_GROUP_SIZE, Described, arguments

SCALE, ZERO_POINT = "input_scale", "input_zero_point"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationScheme:
    """Rounding of the left sides of products with some matrices."""

    code: Element
    group_size: int | None = None
    """Columns that share a dynamic scale; None is all of a token."""
    is_symmetric: bool = True
    is_static: bool = False

    def rounding(self, read: Callable[[str], AnyArray | None]) -> Rounding:
        """Returns it with the static scale of a matrix.

        Args:
            read: returns a tensor beside the matrix by the end of its name; None if it lacks.

        Raises ValueError, which names the tensor, if one is missing or no number that can be one.
        """
        if not self.is_static:
            return Rounding(
                code=self.code, group_size=self.group_size, is_symmetric=self.is_symmetric
            )
        scale = _number(SCALE, read)
        if not 0 < scale < math.inf:
            raise ValueError(f"an {SCALE} of {scale:g}")
        zero_point = 0.0 if self.is_symmetric else _number(ZERO_POINT, read)
        if not -128 <= zero_point <= 127 or not zero_point.is_integer():
            raise ValueError(f"an {ZERO_POINT} of {zero_point:g}")
        return Rounding(code=self.code, scale=scale, zero_point=int(zero_point))


def _number(end: str, read: Callable[[str], AnyArray | None]) -> float:
    values = read(end)
    if values is None or values.size != 1:
        raise ValueError(f"no {end} of one number, by which activations are to be rounded")
    return float(to_float32(values).reshape(()))


def described_scheme(described: Described) -> ActivationScheme | None:
    """Reads a scheme of compressed-tensors; None for one that stays in floats."""
    described = arguments(described)
    strategy, is_symmetric = described["strategy"], bool(described["symmetric"])
    is_static = described["dynamic"] is False
    code = _code(described, is_symmetric)
    size = described.get("group_size") if strategy == "group" else None
    if is_static:
        is_served = strategy == "tensor"
    else:
        is_token = strategy == "token" or _is_size(size)
        is_served = is_token and described["dynamic"] is True
    if code is None or not is_served:
        return None
    return ActivationScheme(
        code=code, group_size=size, is_symmetric=is_symmetric, is_static=is_static
    )


def _code(described: Described, is_symmetric: bool) -> Element | None:
    kind = described["type"]
    if described["num_bits"] != 8:
        return None
    if kind == "int":
        return Element.INT8
    return Element.FP8_E4M3 if kind == "float" and is_symmetric else None


def _is_size(size: Any) -> bool:
    """Says whether native programs round groups of that many columns."""
    return isinstance(size, int) and GROUP <= size <= MAX_GROUP_SIZE and size % GROUP == 0

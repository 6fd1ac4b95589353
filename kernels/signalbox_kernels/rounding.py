"""Codes of 8 bits that a checkpoint prescribes for the left sides of products."""

from dataclasses import dataclass

from signalbox_kernels.structs import Element


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Codes of activations: a value is (code - zero point) x scale.

    A dynamic scale takes the largest magnitude to the end of the codes, 127.5 of whole numbers and
    448 of E4M3, as compressed-tensors does; what exceeds the codes is cut.

    Args:
        code: INT8 or FP8_E4M3.
        group_size: columns that share a dynamic scale; None is all of a row.
        is_symmetric: False for dynamic zero points, which the least and the largest value give.
        scale: a static one of all rows; None for dynamic ones.
        zero_point: goes with a static scale.
    """

    code: Element
    group_size: int | None = None
    is_symmetric: bool = True
    scale: float | None = None
    zero_point: int = 0

    @property
    def is_scaled_codes(self) -> bool:
        """True for whole numbers without zero points, which are multiplied as bytes."""
        return self.code is Element.INT8 and self.is_symmetric and self.zero_point == 0
